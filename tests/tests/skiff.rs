//! The command line `skiff`, as a person uses it: every command, twice where it must be idempotent, and two clusters side
//! by side.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "skiff/clusters.rs"]
mod clusters;
#[path = "skiff/states.rs"]
mod states;

use std::process::{Command, Stdio};

use anyhow::Context as _;

use tests::machine::{Machine, Namespace, eventually};
use tests::{images, process};

fn manifest(image: &str, replicas: u32, note: &str) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: notes}}
data: {{note: {note}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: nginx
        image: {image}
        env: [{{name: NOTE, value: {note}}}]
"
    )
}

fn apply(machine: &Machine, text: &str) -> anyhow::Result<Vec<String>> {
    let file = machine.state().join("web.yaml");
    std::fs::write(&file, text)?;
    let said = machine.skiff(["apply", "-f", &file.display().to_string()])?;
    Ok(said.lines().map(str::to_owned).collect())
}

#[test]
fn the_demo_shows_three_pods_that_answer() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("demo")?;
    let (folder, programs) = (std::env::var("CARGO_MANIFEST_DIR")?, process::programs()?);
    let mut demo = machine.namespace().command(format!("{folder}/demo"));
    // The path as make passes it: relative to the directory in which make was called.
    demo.current_dir(programs.parent().context("a target folder")?);
    demo.arg("--programs").arg(programs.file_name().context("a profile")?);
    demo.arg("--state-dir").arg(machine.state());
    let said = process::run(&mut demo)?;
    assert_eq!(said.matches("Welcome to nginx!").count(), 3, "{said}");
    machine.finish()
}

#[test]
fn a_deployment_from_apply_to_delete() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("skiff")?;
    let image = images::nginx(&machine)?;
    // Both may be repeated.
    machine.skiff(["up"])?;
    assert!(machine.skiff(["status"])?.contains("Ready"));

    let wanted = manifest(&image, 2, "one");
    assert_eq!(
        apply(&machine, &wanted)?,
        ["configmap/notes created", "deployment.apps/web created"]
    );
    assert_eq!(
        apply(&machine, &wanted)?,
        ["configmap/notes unchanged", "deployment.apps/web unchanged"]
    );
    let said = machine.skiff(["rollout", "status", "deployment/web", "--timeout", "60"])?;
    assert!(said.ends_with("deployment \"web\" successfully rolled out\n"), "{said}");

    let table = machine.skiff(["get", "pods", "-l", "app=web"])?;
    assert!(table.starts_with("NAME "), "{table}");
    assert_eq!(
        table
            .lines()
            .filter(|line| line.contains("1/1") && line.contains("Running"))
            .count(),
        2,
        "{table}"
    );
    assert!(machine.skiff(["get", "deploy/web", "-o", "wide"])?.contains(&image));
    assert_eq!(
        machine.skiff(["get", "deploy", "web", "-o", "name"])?,
        "deployment.apps/web\n"
    );
    let json: serde_json::Value = serde_json::from_str(&machine.skiff(["get", "pods", "-o", "json"])?)?;
    assert_eq!(json["items"][0]["kind"], "Pod");
    assert!(machine.skiff(["get", "all", "-A"])?.contains("deployment.apps/web"));
    eventually("an event is described", || {
        let described = machine.skiff(["describe", "deployment/web"]);
        let described = described.map_err(|error| error.to_string())?;
        described.contains("ScalingReplicaSet").then_some(()).ok_or(described)
    })?;
    let address = json["items"][0]["status"]["podIP"].as_str().unwrap_or_default();
    machine.page(&format!("http://{address}/hostname"))?;
    eventually("the log shows the request", || {
        let log = machine
            .skiff(["logs", "-l", "app=web"])
            .map_err(|error| error.to_string())?;
        if log.contains("GET /hostname") {
            Ok(())
        } else {
            Err(log)
        }
    })?;
    assert_trace(&machine)?;
    let then = machine.kubectl(["get", "deployment", "web", "-o", "jsonpath={.metadata.resourceVersion}"])?;
    update_and_go_back(&machine, &image)?;
    let trace = machine.skiff(["trace", "deployment/web", "--at", &then])?;
    for step in ["request received", "pods stored", "scheduled", "ready stored"] {
        let line = trace.lines().find(|line| line.starts_with(&format!("{step}  ")));
        assert!(
            line.is_some_and(|line| line.contains("ms")),
            "of what is gone: {step}: {trace}"
        );
    }
    machine.finish()
}

/// A second revision and back, fewer replicas, and gone.
fn update_and_go_back(machine: &Machine, image: &str) -> anyhow::Result<()> {
    assert_eq!(
        apply(machine, &manifest(image, 2, "two"))?,
        ["configmap/notes configured", "deployment.apps/web configured"]
    );
    machine.skiff(["rollout", "status", "deployment/web"])?;
    machine.skiff(["rollout", "undo", "deployment/web"])?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    let history = machine.skiff(["rollout", "history", "deployment/web"])?;
    assert!(history.contains("\n3 ") && !history.contains("\n1 "), "{history}");
    let note = machine.kubectl([
        "get",
        "deployment",
        "web",
        "-o",
        "jsonpath={.spec.template.spec.containers[0].env[0].value}",
    ])?;
    assert_eq!(note, "one");

    assert_eq!(
        machine.skiff(["scale", "deployment/web", "--replicas", "1"])?,
        "deployment.apps/web scaled\n"
    );
    let file = machine.state().join("web.yaml").display().to_string();
    machine.skiff(["delete", "-f", &file])?;
    let missing = machine.skiff(["get", "deployment", "web"]).unwrap_err().to_string();
    assert!(
        missing.contains("Error from server (NotFound): deployments.apps \"web\" not found"),
        "{missing}"
    );
    machine.skiff(["delete", "-f", &file, "--ignore-not-found"])?;
    Ok(())
}

/// Every step has a time: here are the audit log, the events and the objects.
fn assert_trace(machine: &Machine) -> anyhow::Result<()> {
    let steps = [
        "request received",
        "stored",
        "ReplicaSet stored",
        "pods stored",
        "scheduled",
        "agent saw the pod",
        "image present",
        "network ready",
        "volumes ready",
        "sandbox ready",
        "container created",
        "container started",
        "ready",
        "ready stored",
    ];
    // No step is measured by the objects' times, which are whole seconds.
    let exact = |line: &str| line.contains("ms") && !line.ends_with("pod status");
    eventually("each step has its time", || {
        let trace = machine.skiff(["trace", "deployment/web"]);
        let trace = trace.map_err(|error| format!("{error:#}"))?;
        let line = |step: &str| trace.lines().find(|line| line.starts_with(&format!("{step}  ")));
        match steps
            .into_iter()
            .find(|step| line(step).is_none_or(|line| !exact(line)))
        {
            None => Ok(()),
            Some(step) => Err(format!("{step}: {trace}")),
        }
    })
}

#[test]
fn state_is_kept_without_purge() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("kept")?;
    let image = images::nginx(&machine)?;
    apply(&machine, &manifest(&image, 1, "kept"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    machine.skiff(["down"])?;
    machine.skiff(["down"])?;
    machine.skiff(["status"]).unwrap_err();
    machine.skiff(["up"])?;
    eventually("the pod runs again and answers", || {
        let json = machine
            .skiff(["get", "pods", "-o", "json"])
            .map_err(|error| error.to_string())?;
        let list: serde_json::Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        let address = list["items"][0]["status"]["podIP"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        machine
            .fetch(&format!("http://{address}/"))
            .map(|_| ())
            .map_err(|error| format!("{error:#}\n{json}"))
    })?;
    machine.finish()
}

#[test]
fn daemons_that_something_else_started_again_are_found() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("again")?;
    let mut children = Vec::new();
    for program in ["skiff-controlplane", "skiff-agent"] {
        let pid = machine.daemon(program)?;
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        let words: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status()?;
        anyhow::ensure!(killed.success(), "kill {pid}");
        eventually("it is gone", || {
            if std::path::Path::new(&format!("/proc/{pid}")).exists() {
                return Err(format!("{pid} is there"));
            }
            Ok(())
        })?;
        let (name, arguments) = words.split_first().context("a command line")?;
        let mut command = machine.namespace().command(name);
        children.push((
            program,
            command
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        ));
    }
    for (program, child) in &children {
        eventually("skiff status finds it", || {
            // Its exit code reports the node's readiness, which may not be reached yet.
            let said = match machine.skiff(["status"]) {
                Ok(said) => said,
                Err(error) => format!("{error:#}"),
            };
            let wanted = format!("running, process {}", child.id());
            said.contains(&wanted)
                .then_some(())
                .ok_or(format!("{program}, {wanted}: {said}"))
        })?;
    }
    machine.skiff(["down"])?;
    for (program, mut child) in children {
        // Its first thread may end before the others.
        eventually(&format!("{program} has ended"), || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    machine.finish()
}

/// A process that is found running may end before it answers.
#[test]
fn a_server_that_ends_while_up_waits_for_it_is_started_again() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("ending")?;
    let pid = machine.daemon("skiff-controlplane")?;
    let signal = |name: &str| process::run(Command::new("kill").args([name, &pid.to_string()])).map(drop);
    signal("-STOP")?;
    std::thread::scope(|scope| {
        let up = scope.spawn(|| machine.skiff(["up"]));
        let asks = eventually("skiff up asks it", || {
            let words = format!("up --state-dir {}", machine.state().display());
            let all = process::with_command_line(&words).map_err(|error| error.to_string())?;
            let (up, _) = all.first().ok_or("it is not there")?;
            let open = std::fs::read_dir(format!("/proc/{up}/fd")).map_err(|error| error.to_string())?;
            let open: Vec<String> = open
                .flatten()
                .filter_map(|entry| std::fs::read_link(entry.path()).ok())
                .map(|target| target.display().to_string())
                .collect();
            let asks = open.iter().any(|target| target.starts_with("socket:"));
            asks.then_some(()).ok_or(format!("{open:?}"))
        });
        signal("-KILL")?;
        asks?;
        up.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    anyhow::ensure!(machine.daemon("skiff-controlplane")? != pid);
    machine.finish()
}

#[test]
fn wrong_usage_and_failure_have_their_exit_codes() -> anyhow::Result<()> {
    let namespace = Namespace::new("usage")?;
    let home = tempfile::tempdir()?;
    let code = |words: &[&str]| -> anyhow::Result<Option<i32>> {
        let mut command: Command = namespace.command(process::programs()?.join("skiff"));
        Ok(command
            .args(words)
            .arg("--state-dir")
            .arg(home.path().join("none"))
            .output()?
            .status
            .code())
    };
    assert_eq!(code(&["frobnicate"])?, Some(2));
    assert_eq!(code(&["get"])?, Some(2));
    assert_eq!(code(&["get", "pods"])?, Some(1));
    assert_eq!(code(&["status"])?, Some(1));
    assert_eq!(code(&["down"])?, Some(0));
    assert_eq!(code(&["--help"])?, Some(0));
    Ok(())
}

#[test]
fn a_backup_brings_a_cluster_back() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("backup")?;
    machine.kubectl(["create", "configmap", "notes", "--from-literal=a=before"])?;
    let kept = machine.state().with_extension("backup");
    let file = kept.display().to_string();
    machine.skiff(["backup", &file])?;
    machine.kubectl(["create", "configmap", "later", "--from-literal=a=after"])?;
    let credentials = std::fs::read_to_string(machine.kubeconfig())?;

    machine.skiff(["down", "--purge"])?;
    machine.skiff(["restore", &file])?;
    std::fs::remove_file(&kept)?;
    machine.skiff(["up"])?;
    let names = machine.kubectl(["get", "configmaps", "-o", "name"])?;
    assert!(names.contains("configmap/notes"), "{names}");
    assert!(!names.contains("configmap/later"), "{names}");
    // The authority is the old one: a client with a certificate of it is still accepted.
    let old = machine.state().join("old.kubeconfig");
    std::fs::write(&old, credentials)?;
    let old = old.display().to_string();
    assert!(
        machine
            .kubectl(["--kubeconfig", &old, "get", "nodes"])?
            .contains("Ready")
    );
    machine.finish()
}
