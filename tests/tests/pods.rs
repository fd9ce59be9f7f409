//! Features of pods, side by side on one real node: start, environment and end of containers.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tests::images;
use tests::machine::{Machine, eventually};

#[path = "pods/displaced.rs"]
mod displaced;
#[path = "pods/private.rs"]
mod private;

struct Node {
    machine: Machine,
    shared: PathBuf,
}

impl Node {
    fn pods(&self) -> Result<BTreeMap<String, Value>, String> {
        let said = self.machine.kubectl(["get", "pods", "-o", "json"]);
        let list: Value =
            serde_json::from_str(&said.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        let items = list["items"].as_array().into_iter().flatten();
        Ok(items
            .map(|pod| {
                (
                    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    pod.clone(),
                )
            })
            .collect())
    }

    /// Waits until the pod's status has these values at these paths.
    fn until(&self, name: &str, wanted: &[(&str, Value)]) -> anyhow::Result<Value> {
        eventually(&format!("{name} shows {wanted:?}"), || {
            let pod = self.pods()?.remove(name).unwrap_or_default();
            let status = &pod["status"];
            if wanted.iter().all(|(path, value)| status.pointer(path) == Some(value)) {
                return Ok(pod.clone());
            }
            Err(status.to_string())
        })
    }

    /// Events of a pod, `reason: message`, when one of them holds `text`.
    fn event(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let selector = format!("--field-selector=involvedObject.name={name}");
        let format = "-o=jsonpath={range .items[*]}{.type} {.reason}: {.message}{\"\\n\"}{end}";
        eventually(&format!("an event of {name}: {text}"), || {
            let said = self.machine.kubectl(["get", "events", &selector, format]);
            let said = said.map_err(|error| error.to_string())?;
            if said.contains(text) { Ok(()) } else { Err(said) }
        })
    }

    fn log(&self, pod: &str, wanted: &str) -> anyhow::Result<()> {
        eventually(&format!("{pod} says {wanted:?}"), || {
            let said = self.machine.kubectl(["logs", pod]);
            let said = said.map_err(|error| error.to_string())?;
            if said == wanted { Ok(()) } else { Err(said) }
        })
    }

    fn file(&self, name: &str, wanted: &str) -> anyhow::Result<()> {
        eventually(&format!("{name} holds {wanted:?}"), || {
            let text = std::fs::read_to_string(self.shared.join(name)).unwrap_or_default();
            if text == wanted { Ok(()) } else { Err(text) }
        })
    }
}

fn start(home: &Path) -> anyhow::Result<Node> {
    let machine = Machine::start("pods")?;
    let image = images::busybox(&machine)?;
    let shared = home.join("shared");
    std::fs::create_dir(&shared)?;
    let manifest = include_str!("pods.yaml")
        .replace("IMAGE", &image)
        .replace("SHARED", &shared.display().to_string());
    let file = home.join("pods.yaml");
    std::fs::write(&file, manifest)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    Ok(Node { machine, shared })
}

#[test]
fn pods_begin_find_and_end_as_their_specifications_say() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let node = start(home.path())?;
    assert_pull(&node)?;
    assert_beginnings(&node)?;
    assert_stillborn(&node)?;
    assert_files(&node)?;
    assert_ends(&node)?;
    assert_waits(&node)?;
    assert_probes(&node)?;
    assert_together(&node)?;
    assert_leaving(&node)?;
    assert_deletions(&node)?;
    // The agent is found and stopped even without its pid file.
    std::fs::remove_file(node.machine.state().join("agent.pid"))?;
    assert_alone(&node)?;
    node.machine.finish()
}

/// A registry that is not there is named within seconds.
fn assert_pull(node: &Node) -> anyhow::Result<()> {
    let waiting = "/containerStatuses/0/state/waiting";
    let pod = node.until("absent", &[(&format!("{waiting}/reason"), "ImagePullBackOff".into())])?;
    let message = &pod["status"].pointer(waiting).unwrap_or(&Value::Null)["message"];
    let message = message.as_str().unwrap_or_default();
    let wanted = "Back-off pulling image \"skiff.invalid/absent:1\": ErrImagePull: failed to pull and unpack image \
                  \"skiff.invalid/absent:1\": failed to resolve reference \"skiff.invalid/absent:1\": failed to do request: ";
    assert!(message.starts_with(wanted), "{message}");
    node.event("absent", "Normal Pulling: Pulling image \"skiff.invalid/absent:1\"")?;
    node.event(
        "absent",
        "Warning Failed: Failed to pull image \"skiff.invalid/absent:1\": failed to",
    )?;
    node.event("absent", "Warning Failed: Error: ErrImagePull")?;
    node.event(
        "absent",
        "Normal BackOff: Back-off pulling image \"skiff.invalid/absent:1\"",
    )?;
    node.event("absent", "Warning Failed: Error: ImagePullBackOff")?;
    // It is looked for while all the other pods begin.
    let took = first(node, "BackOff")?
        .duration_since(first(node, "Pulling")?)
        .as_secs();
    assert!(took <= 20, "after {took} s");
    // An invalid name is not pulled.
    node.until("misnamed", &[(&format!("{waiting}/reason"), "InvalidImageName".into())])?;
    let name = "not//a name";
    let why = format!(
        "Warning InspectFailed: Failed to apply default image tag \"{name}\": couldn't parse image name \"{name}\": invalid \
         reference format"
    );
    node.event("misnamed", &why)?;
    node.event("misnamed", "Warning Failed: Error: InvalidImageName")?;
    let subject = "--field-selector=involvedObject.name=misnamed,reason=Pulling";
    assert_eq!(node.machine.kubectl(["get", "events", subject, "-o=name"])?, "");
    Ok(())
}

/// Time of the first event of the absent image with a reason.
fn first(node: &Node, reason: &str) -> anyhow::Result<k8s_openapi::jiff::Timestamp> {
    let selector = format!("--field-selector=involvedObject.name=absent,reason={reason}");
    let time = ["get", "events", &selector, "-o=jsonpath={.items[0].firstTimestamp}"];
    Ok(node.machine.kubectl(time)?.parse()?)
}

/// A pod that ended with its first container keeps its address, and reports nothing about the
/// images of the others.
fn assert_stillborn(node: &Node) -> anyhow::Result<()> {
    let pod = node.until("stillborn", &[("/phase", "Failed".into())])?;
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    assert!(address.starts_with("10.244.0."), "{}", pod["status"]);
    node.event("stillborn", "Normal Started: ")?;
    let subject = "--field-selector=involvedObject.name=stillborn,reason=Pulled";
    let pulled = [
        "get",
        "events",
        subject,
        "-o=jsonpath={.items[*].involvedObject.fieldPath}",
    ];
    assert_eq!(node.machine.kubectl(pulled)?, "spec.initContainers{first}");
    Ok(())
}

/// Initial containers in their order, a sidecar that stays until the end, the node's own network.
fn assert_beginnings(node: &Node) -> anyhow::Result<()> {
    let pod = node.until("initial", &[("/phase", "Succeeded".into())])?;
    let said = node.machine.kubectl(["logs", "initial", "-c", "main"])?;
    assert_eq!(said, "one\nside\ntwo\ntmpfs /memory\n");
    for status in pod["status"]["initContainerStatuses"].as_array().into_iter().flatten() {
        assert_eq!(status["state"]["terminated"]["reason"], "Completed", "{status}");
        assert_eq!(status["restartCount"], 0, "{status}");
    }
    let ready = ("/containerStatuses/0/ready", true.into());
    node.until(
        "node",
        &[ready, ("/podIP", "172.30.0.1".into()), ("/hostIP", "172.30.0.1".into())],
    )?;
    node.log("node", "172.30.0.1/24\n")
}

/// Environment and volumes, and how a volume follows its ConfigMap.
fn assert_files(node: &Node) -> anyhow::Result<()> {
    node.file("color", "red")?;
    let pod = node.until("files", &[("/containerStatuses/0/ready", true.into())])?;
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    let wanted =
        format!("red hidden files {address} 172.30.0.1 a note 32\nredhiddenapp=\"files\"250\n400\n33554432\ndone\n");
    node.log("files", &wanted)?;
    node.machine.kubectl([
        "patch",
        "configmap",
        "settings",
        "--type=merge",
        "-p",
        "{\"data\":{\"color\":\"blue\"}}",
    ])?;
    node.file("color", "blue")
}

/// Phases, exit codes, reasons and termination messages.
fn assert_ends(node: &Node) -> anyhow::Result<()> {
    for (name, phase, code, reason, message, restarts) in [
        ("hungry", "Failed", 137, "OOMKilled", None, 0),
        ("fails", "Failed", 5, "Error", Some("why\n"), 0),
        ("talks", "Failed", 4, "Error", Some("last words\n"), 0),
        ("succeeds", "Succeeded", 0, "Completed", None, 1),
        ("late", "Failed", 143, "Error", None, 0),
    ] {
        let pod = node.until(name, &[("/phase", phase.into())])?;
        let status = &pod["status"]["containerStatuses"][0];
        let ended = &status["state"]["terminated"];
        assert_eq!(ended["reason"], reason, "{name}: {status}");
        assert!(ended["exitCode"] == code || name == "late", "{name}: {status}");
        assert_eq!(ended["message"].as_str(), message, "{name}: {status}");
        assert_eq!(status["restartCount"], restarts, "{name}: {status}");
    }
    let late = node.until("late", &[("/reason", "DeadlineExceeded".into())])?;
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(late["status"]["message"], message);
    node.event("late", &format!("Normal DeadlineExceeded: {message}"))
}

/// Reasons for which a container does not run, in upstream's words.
fn assert_waits(node: &Node) -> anyhow::Result<()> {
    let reason = "/containerStatuses/0/state/waiting/reason";
    let pod = node.until("crashes", &[(reason, "CrashLoopBackOff".into())])?;
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3, "{status}");
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let message = status["state"]["waiting"]["message"].as_str().unwrap_or_default();
    let end = format!(" restarting failed container=main pod=crashes_default({uid})");
    assert!(message.starts_with("back-off ") && message.ends_with(&end), "{message}");
    let text = format!("Warning BackOff: Back-off restarting failed container main in pod crashes_default({uid})");
    node.event("crashes", &text)?;
    let pod = node.until("cannot", &[(reason, "CrashLoopBackOff".into())])?;
    let ended = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(ended["reason"], "StartError", "{ended}");
    assert_eq!(ended["exitCode"], 128, "{ended}");
    assert_eq!(ended["startedAt"], "1970-01-01T00:00:00Z", "{ended}");
    let why = "failed to create task: OCI runtime create failed: unable to start container process: \
               error during container init: exec: \"/no/such/program\": stat /no/such/program: no such file or directory: \
               unknown";
    assert_eq!(ended["message"], why);
    node.event("cannot", &format!("Warning Failed: Error: {why}"))?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let text = format!("Warning BackOff: Back-off restarting failed container main in pod cannot_default({uid})");
    node.event("cannot", &text)?;
    node.until("lacks", &[(reason, "CreateContainerConfigError".into())])?;
    node.event("lacks", "Warning Failed: Error: configmap \"nothere\" not found")
}

/// Readiness changes, and a container that fails its liveness probe is restarted.
fn assert_probes(node: &Node) -> anyhow::Result<()> {
    let (ready, restarts) = ("/containerStatuses/0/ready", "/containerStatuses/0/restartCount");
    node.until("probed", &[(ready, false.into()), (restarts, 0.into())])?;
    node.event("probed", "Warning Unhealthy: Readiness probe failed: ")?;
    std::fs::write(node.shared.join("ready"), "")?;
    node.until("probed", &[(ready, true.into()), (restarts, 0.into())])?;
    std::fs::remove_file(node.shared.join("ready"))?;
    node.until("probed", &[(ready, false.into()), (restarts, 0.into())])?;
    std::fs::write(node.shared.join("ill"), "")?;
    let text = "Normal Killing: Container main failed liveness probe, will be restarted";
    node.event("probed", text)?;
    std::fs::remove_file(node.shared.join("ill"))?;
    eventually("it has been started again", || {
        let pod = node.pods()?.remove("probed").unwrap_or_default();
        let status = &pod["status"]["containerStatuses"][0];
        let again = status["started"] == true && status["restartCount"] != 0;
        if again { Ok(()) } else { Err(status.to_string()) }
    })
}

/// A rule of one container restarts all of them, and `hostnameOverride` takes precedence.
fn assert_together(node: &Node) -> anyhow::Result<()> {
    let restarted = |which: &'static str| (which, Value::from(1));
    let condition = "AllContainersRestarting";
    let pod = node.until(
        "together",
        &[
            ("/phase", "Running".into()),
            restarted("/initContainerStatuses/0/restartCount"),
            restarted("/initContainerStatuses/1/restartCount"),
            restarted("/containerStatuses/0/restartCount"),
            restarted("/containerStatuses/1/restartCount"),
            ("/containerStatuses/0/ready", true.into()),
            ("/containerStatuses/1/ready", true.into()),
        ],
    )?;
    for index in [0, 1] {
        let ended = &pod["status"]["containerStatuses"][index]["lastState"]["terminated"];
        assert_eq!(ended["exitCode"], 137, "{ended}");
        assert_eq!(ended["reason"], "RestartingAllContainers", "{ended}");
        assert!(
            ended["containerID"].is_null() && ended["finishedAt"].is_null(),
            "{ended}"
        );
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let told: Vec<&Value> = conditions.filter(|found| found["type"] == condition).collect();
    assert!(told.len() == 1 && told[0]["status"] == "False", "{told:?}");
    let said = node.machine.kubectl(["logs", "together", "-c", "first"])?;
    assert_eq!(said, "other.name\n");

    let pod = node.until("nowhere", &[("/phase", "Failed".into())])?;
    let message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].as_str();
    let why = "error during container init: mkdir /link/here: file exists: unknown";
    assert!(message.is_some_and(|message| message.ends_with(why)), "{message:?}");
    Ok(())
}

/// Terminating pods report it in their status, and a probe that cannot be run does not affect the
/// container.
fn assert_leaving(node: &Node) -> anyhow::Result<()> {
    let ready = "/containerStatuses/0/ready";
    let unknown = "Warning Unhealthy: Liveness probe errored and resulted in unknown state: failed to exec in container: \
                   OCI runtime exec failed: exec failed: unable to start container process: exec: \"/no/such/program\": \
                   stat /no/such/program: no such file or directory";
    node.event("leaving", unknown)?;
    node.until(
        "leaving",
        &[(ready, true.into()), ("/containerStatuses/0/restartCount", 0.into())],
    )?;
    node.machine.kubectl(["delete", "pod", "leaving", "--wait=false"])?;
    let pod = node.until("leaving", &[(ready, false.into()), ("/phase", "Running".into())])?;
    assert!(
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object(),
        "{pod}"
    );
    std::fs::remove_file(node.shared.join("leaving"))?;
    node.machine
        .kubectl(["wait", "--for=delete", "pod/leaving", "--timeout=30s"])?;
    Ok(())
}

/// Hooks run in order, and a container that ignores its stop signal is killed after the grace
/// period.
fn assert_deletions(node: &Node) -> anyhow::Result<()> {
    node.file("hooks", "started\n")?;
    let elapsed = clock();
    node.machine.kubectl(["delete", "pod", "hooked"])?;
    // Not at the end of its grace period of sixty.
    assert!(elapsed() < Duration::from_secs(50), "{:?}", elapsed());
    node.file("hooks", "started\nstopping\nended\n")?;
    node.event("hooked", "Normal Killing: Stopping container main")?;
    let elapsed = clock();
    node.machine.kubectl(["delete", "pod", "stubborn"])?;
    assert!(elapsed() >= Duration::from_millis(1900), "{:?}", elapsed());
    assert!(elapsed() < Duration::from_secs(25), "{:?}", elapsed());
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test against real processes runs on the wall clock"
)]
fn clock() -> impl Fn() -> Duration {
    let start = std::time::Instant::now();
    move || start.elapsed()
}

/// The state directory of a running agent is locked.
fn assert_alone(node: &Node) -> anyhow::Result<()> {
    let pid = node.machine.daemon("skiff-agent")?;
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    let words: Vec<&str> = line.split_terminator('\0').collect();
    for command in ["run", "cleanup"] {
        let output = node
            .machine
            .namespace()
            .command(words[0])
            .arg(command)
            .args(&words[2..])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{command}: {said}");
        assert!(
            said.contains(&format!("is in use by process {pid} (skiff-agent run)")),
            "{command}: {said}"
        );
    }
    node.until("probed", &[("/containerStatuses/0/started", true.into())])?;
    Ok(())
}
