//! The end of the machine, as a real agent hears it over a real bus: pods end in their order, and only then the machine does.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use service::Logind;
use tests::images;
use tests::machine::{Machine, Namespace, Setup, eventually};

#[allow(dead_code, reason = "the agent's end of the bus has more than this uses")]
#[path = "../../agent/src/node/shutdown/bus/mod.rs"]
mod bus;
#[path = "shutdown/service.rs"]
mod service;

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 10
  volumes: [{name: host, hostPath: {path: HOST}}]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "trap 'echo plain >> /host/ends; exit 0' TERM; while :; do sleep 1000 & wait; done"]
    volumeMounts: [{name: host, mountPath: /host}]
---
apiVersion: v1
kind: Pod
metadata: {name: deaf, namespace: kube-system}
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 10
  containers:
  - {name: main, image: IMAGE, imagePullPolicy: Never, command: [sleep, "1000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: critical, namespace: kube-system}
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 10
  volumes: [{name: host, hostPath: {path: HOST}}]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "trap 'echo critical >> /host/ends; exit 0' TERM; while :; do sleep 1000 & wait; done"]
    volumeMounts: [{name: host, mountPath: /host}]
"#;

struct Daemon(Child);

impl Daemon {
    /// A bus of this test alone; the session's rules let everybody own names.
    fn start(socket: &Path) -> anyhow::Result<Self> {
        let daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--nosyslog"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .stdout(Stdio::null())
            .spawn()
            .context("start dbus-daemon")?;
        let daemon = Self(daemon);
        eventually("the bus is there", || {
            // The file is there before anybody listens.
            let connected = std::os::unix::net::UnixStream::connect(socket);
            connected.map(drop).map_err(|error| error.to_string())
        })?;
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn get(machine: &Machine, words: &[&str]) -> Result<Value, String> {
    let all = ["get", "-o", "json"].iter().chain(words).copied();
    let said = machine.kubectl(all).map_err(|error| format!("{error:#}"))?;
    serde_json::from_str(&said).map_err(|error| error.to_string())
}

fn until(machine: &Machine, what: &str, words: &[&str], wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    eventually(what, || {
        let found = get(machine, words)?;
        if wanted(&found) {
            Ok(found)
        } else {
            Err(found["status"].to_string())
        }
    })
}

fn ready(node: &Value) -> Value {
    let all = node["items"][0]["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    all.into_iter()
        .find(|condition| condition["type"] == "Ready")
        .unwrap_or_default()
}

/// Status of a pod that ended with the machine's shutdown.
fn tells_why(pod: &Value) -> anyhow::Result<()> {
    let status = &pod["status"];
    let message = "Pod was terminated in response to imminent node shutdown.";
    ensure!(
        status["phase"] == "Failed" && status["reason"] == "Terminated",
        "{status:#}"
    );
    ensure!(status["message"] == message, "{status:#}");
    let told = status["conditions"].as_array().into_iter().flatten();
    let mut told = told.filter(|condition| condition["type"] == "DisruptionTarget");
    ensure!(
        told.any(|condition| condition["reason"] == "TerminationByKubelet"),
        "{status:#}"
    );
    Ok(())
}

/// The volumes of a pod that has ended were removed before the machine went on.
fn has_no_volumes(machine: &Machine, words: &[&str]) -> anyhow::Result<()> {
    let pod = get(machine, words).map_err(anyhow::Error::msg)?;
    let uid = pod["metadata"]["uid"].as_str().context("its uid")?;
    let left = machine.state().join("agent/pods").join(uid);
    ensure!(!left.exists(), "{} is still there", left.display());
    Ok(())
}

#[test]
fn pods_end_before_the_machine_does() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::Builder::new().prefix("skiff-shutdown-").tempdir()?;
    let (socket, host) = (home.path().join("bus"), home.path().join("host"));
    std::fs::create_dir(&host)?;
    let _daemon = Daemon::start(&socket)?;
    let mut logind = Logind::own(&socket)?;
    let address = format!("unix:path={}", socket.display());
    let environment = [
        ("DBUS_SYSTEM_BUS_ADDRESS", address.as_str()),
        ("SKIFF_SHUTDOWN_GRACE_PERIOD", "20s"),
        ("SKIFF_SHUTDOWN_GRACE_PERIOD_CRITICAL_PODS", "10s"),
    ];
    let setup = Setup {
        environment: &environment,
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("shutdown")?, setup)?;
    let image = images::busybox(&machine)?;
    let file = home.path().join("pods.yaml");
    let manifest = PODS
        .replace("IMAGE", &image)
        .replace("HOST", &host.display().to_string());
    std::fs::write(&file, manifest)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    let running = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let (plain, critical) = (["pod", "plain"], ["pod", "critical", "-n", "kube-system"]);
    until(&machine, "the plain pod runs", &plain, running)?;
    until(&machine, "the critical pod runs", &critical, running)?;
    // It is killed at the end of the pods' grace period.
    let deaf = ["pod", "deaf", "-n", "kube-system"];
    until(&machine, "the deaf pod runs", &deaf, running)?;

    logind.wait_for_lock()?;
    logind.prepare(true)?;
    until(&machine, "the node says so", &["nodes"], |nodes| {
        let ready = ready(nodes);
        ready["status"] == "False" && ready["message"] == "node is shutting down"
    })?;
    logind.wait_for_release()?;
    has_no_volumes(&machine, &plain)?;
    for words in [&plain[..], &deaf[..], &critical[..]] {
        let pod = until(&machine, "its end is told", words, |pod| {
            pod["status"]["phase"] == "Failed"
        })?;
        tells_why(&pod)?;
    }
    ensure!(
        std::fs::read_to_string(host.join("ends"))? == "plain\ncritical\n",
        "the order"
    );

    // No pod starts any more, until the shutdown is cancelled.
    let again = manifest_of("late", &image);
    std::fs::write(&file, &again)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    let refused = until(&machine, "a late pod is refused", &["pod", "late"], |pod| {
        pod["status"]["phase"] == "Failed"
    })?;
    ensure!(refused["status"]["reason"] == "NodeShutdown", "{refused:#}");
    logind.prepare(false)?;
    until(&machine, "the node is ready", &["nodes"], |nodes| {
        ready(nodes)["status"] == "True"
    })?;
    logind.wait_for_lock()?;
    std::fs::write(&file, manifest_of("later", &image))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    until(&machine, "a later pod runs", &["pod", "later"], running)?;
    machine.finish()
}

/// A pod that is bound to the node by its name, whatever the scheduler thinks of the node.
fn manifest_of(name: &str, image: &str) -> String {
    let node = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{nodeName: \"{node}\", containers: [{{name: main, \
         image: \"{image}\", imagePullPolicy: Never, command: [sleep, '100000']}}]}}}}"
    )
}
