//! Images, pods and neighbours that try to reach what is not theirs, on a whole machine.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use image::Digest;
use serde_json::{Value, json};
use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::{images, process};

/// Applies a pod with this specification; the answer's text.
fn apply(machine: &Machine, name: &str, spec: &Value) -> anyhow::Result<String> {
    let file = machine.state().join(format!("{name}.json"));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    std::fs::write(&file, pod.to_string())?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])
}

fn sleeping(image: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": image, "command": ["sleep", "100000"]}]})
}

fn ready(machine: &Machine, pod: &str) -> anyhow::Result<()> {
    machine.kubectl(["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"])?;
    Ok(())
}

fn exec(machine: &Machine, pod: &str, words: &[&str]) -> anyhow::Result<String> {
    let command = ["exec", pod, "--"].into_iter().chain(words.iter().copied());
    machine.kubectl(command)
}

/// An OCI archive like another one, with volumes in its configuration.
fn with_volumes(archive: &Path, home: &Path, volumes: &Value) -> anyhow::Result<PathBuf> {
    let layout = home.join("layout");
    std::fs::create_dir(&layout)?;
    process::run(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&layout))?;
    let blob = |digest: &str| layout.join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    let read = |path: &Path| -> anyhow::Result<Value> { Ok(serde_json::from_slice(&std::fs::read(path)?)?) };
    let put = |value: &Value, descriptor: &mut Value| -> anyhow::Result<()> {
        let text = value.to_string();
        let digest = Digest::of(text.as_bytes()).to_string();
        std::fs::write(blob(&digest), &text)?;
        descriptor["digest"] = digest.into();
        descriptor["size"] = text.len().into();
        Ok(())
    };
    let of = |descriptor: &Value| descriptor["digest"].as_str().map(blob).context("a digest");
    let mut index = read(&layout.join("index.json"))?;
    let mut manifest = read(&of(&index["manifests"][0])?)?;
    let mut config = read(&of(&manifest["config"])?)?;
    config["config"]["Volumes"] = volumes.clone();
    put(&config, &mut manifest["config"])?;
    put(&manifest, &mut index["manifests"][0])?;
    std::fs::write(layout.join("index.json"), index.to_string())?;
    let made = home.join("volumes.tar");
    process::run(Command::new("tar").arg("cf").arg(&made).arg("-C").arg(&layout).arg("."))?;
    Ok(made)
}

#[test]
fn attack_08_volumes_of_an_image_lead_nowhere() -> anyhow::Result<()> {
    tests::logging();
    let (machine, home) = (Machine::start("volumes")?, tempfile::tempdir()?);
    let image = images::busybox(&machine)?;
    let volumes = json!({"/../../etc": {}, "../../../root": {}, "/proc/self/root/etc": {}, "/": {}});
    machine.import(&with_volumes(&images::archive("busybox")?, home.path(), &volumes)?)?;
    let of_machine = || -> anyhow::Result<(Vec<String>, Vec<String>)> {
        // Services of the machine write some files anew: times, and sizes of folders, tell nothing.
        let size = ["(", "-type", "d", "-o", "-printf", "%s", ")", "-printf", "\\n"];
        let mut etc = Command::new("find");
        let etc = process::run(etc.args(["/etc", "-printf", "%p %M %U:%G "]).args(size))?;
        // Other programs write below it, and hidden files into it.
        let shown = ["-maxdepth", "1", "-not", "-name", ".*", "-printf", "%p %M %U:%G\\n"];
        let root = process::run(Command::new("find").arg("/root").args(shown))?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let at = |line: &&str| {
            line.split(' ')
                .nth(4)
                .is_some_and(|at| at.starts_with("/etc") || at.starts_with("/root"))
        };
        Ok((
            etc.lines().chain(root.lines()).map(str::to_owned).collect(),
            mounts.lines().filter(at).map(str::to_owned).collect(),
        ))
    };
    let before = of_machine()?;
    apply(&machine, "evil", &sleeping(&image))?;
    ready(&machine, "evil")?;
    let passwd = exec(&machine, "evil", &["cat", "/etc/passwd"])?;
    ensure!(passwd != std::fs::read_to_string("/etc/passwd")?, "{passwd}");
    exec(&machine, "evil", &["touch", "/etc/of-the-image", "/root-of-the-image"])?;
    let (volumes, other) = (json!({"/nul\u{0}": {}}), tempfile::tempdir()?);
    machine.import(&with_volumes(&images::archive("busybox")?, other.path(), &volumes)?)?;
    apply(&machine, "nul", &sleeping(&image))?;
    eventually("a path that is none is told", || {
        let said = machine.kubectl(["get", "events"]).map_err(|error| error.to_string())?;
        if said.contains("mkdir /nul") { Ok(()) } else { Err(said) }
    })?;
    assert_eq!(of_machine()?, before);
    machine.finish()
}

#[test]
fn attack_29_no_git_runs_on_the_node() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("git")?;
    let image = images::busybox(&machine)?;
    let mut spec = sleeping(&image);
    let repository = "--upload-pack=touch /tmp/skiff-attack-29";
    spec["volumes"] = json!([{"name": "v", "gitRepo": {"repository": repository, "directory": "../../x"}}]);
    let refused = apply(&machine, "cloned", &spec).err().map(|error| error.to_string());
    ensure!(
        refused
            .as_ref()
            .is_some_and(|said| said.contains("spec.volumes[0].gitRepo")),
        "{refused:?}"
    );
    ensure!(!Path::new("/tmp/skiff-attack-29").exists(), "a program ran");
    machine.finish()
}

#[test]
fn attack_31_no_socket_of_the_node_is_open_to_its_network() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("sockets")?;
    let image = images::busybox(&machine)?;
    let mut spec = sleeping(&image);
    spec["hostNetwork"] = true.into();
    apply(&machine, "neighbour", &spec)?;
    ready(&machine, "neighbour")?;
    // All sockets of the machine: its programs run in one network namespace, and so does the pod.
    let table = exec(&machine, "neighbour", &["cat", "/proc/net/unix"])?;
    let names: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(7))
        .collect();
    let own: Vec<&&str> = names.iter().filter(|name| name.starts_with('/')).collect();
    ensure!(own.iter().any(|name| name.ends_with("agent.sock")), "{table}");
    let abstract_names: Vec<&&str> = names.iter().filter(|name| name.starts_with('@')).collect();
    ensure!(
        abstract_names.is_empty(),
        "anybody in the network may connect to {abstract_names:?}"
    );
    for name in own {
        let found = std::fs::symlink_metadata(name).with_context(|| (*name).to_owned())?;
        let mode = found.permissions().mode();
        ensure!(
            found.file_type().is_socket() && mode.trailing_zeros() >= 6,
            "{name} has mode {mode:o}"
        );
        let missing = exec(&machine, "neighbour", &["ls", name])
            .err()
            .map(|error| error.to_string());
        ensure!(
            missing.is_some_and(|said| said.contains("No such file")),
            "{name} is in the container"
        );
    }
    machine.finish()
}

/// Collects paths below a directory that users other than root may enter or read, as far as its
/// parents let them.
fn open_to_others(path: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    let about = std::fs::symlink_metadata(path)?;
    let mode = about.permissions().mode();
    if about.is_symlink() || mode.trailing_zeros() >= 6 {
        return Ok(());
    }
    found.push(format!("{} {mode:o}", path.display()));
    if about.is_dir() && mode & 0o011 != 0 {
        for entry in std::fs::read_dir(path)? {
            open_to_others(&entry?.path(), found)?;
        }
    }
    Ok(())
}

#[test]
fn attack_32_state_keys_and_volumes_are_closed_to_others() -> anyhow::Result<()> {
    tests::logging();
    let setup = Setup {
        open: true,
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("closed")?, setup)?;
    let image = images::busybox(&machine)?;
    machine.kubectl(["create", "secret", "generic", "hidden", "--from-literal=word=hush"])?;
    let mut spec = sleeping(&image);
    spec["volumes"] = json!([{"name": "v", "secret": {"secretName": "hidden"}}, {"name": "e", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}]);
    apply(&machine, "keeper", &spec)?;
    ready(&machine, "keeper")?;
    ensure!(exec(&machine, "keeper", &["cat", "/v/word"])? == "hush", "the secret");
    // Each of the directories by itself, wherever it may be placed.
    let closed = || -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for part in [
            "",
            "agent",
            "agent/pki",
            "controlplane",
            "controlplane/pki",
            "admin.kubeconfig",
        ] {
            open_to_others(&machine.state().join(part), &mut found)?;
        }
        Ok(found)
    };
    assert_eq!(closed()?, Vec::<String>::new());
    machine.skiff(["down"])?;
    // The daemons restrict the permissions of what they find open.
    process::run(Command::new("chmod").args(["-R", "go+rwX"]).arg(machine.state()))?;
    ensure!(!closed()?.is_empty(), "it is open");
    machine.skiff(["up"])?;
    assert_eq!(closed()?, Vec::<String>::new());
    machine.finish()
}

/// Under memory pressure the agent is killed after the pods, or logs that it cannot arrange that.
fn protected(machine: &Machine) -> anyhow::Result<()> {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(held.context("its capabilities")?.trim(), 16)?;
    if held & CAP_SYS_RESOURCE == 0 {
        let log = machine.logs();
        ensure!(log.contains("the agent may be killed when memory is short"), "{log}");
        return Ok(());
    }
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", machine.daemon("skiff-agent")?))?;
    ensure!(score.trim() == "-999", "the agent goes {score}");
    Ok(())
}

#[test]
fn attack_39_a_pod_that_takes_all_it_can_takes_nothing_of_others() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("hogs")?;
    let image = images::busybox(&machine)?;
    protected(&machine)?;
    apply(&machine, "good", &sleeping(&image))?;
    let hog = |name: &str, script: &str, memory: &str| {
        let limits = json!({"limits": {"memory": memory, "cpu": "500m"}});
        let container = json!({"name": "c", "image": image, "command": ["sh", "-c", script], "resources": limits});
        let spec = json!({"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]});
        apply(&machine, name, &spec)
    };
    hog("memory", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done", "16Mi")?;
    hog(
        "files",
        "i=3; while eval \"exec $i</etc/passwd\"; do i=$((i+1)); done",
        "64Mi",
    )?;
    ready(&machine, "good")?;
    eventually("the hog of memory is killed", || {
        let reason = "jsonpath={.status.containerStatuses[0].state.terminated.reason}";
        let reason = machine.kubectl(["get", "pod", "memory", "-o", reason]);
        match reason.map_err(|error| error.to_string())?.as_str() {
            "OOMKilled" => Ok(()),
            other => Err(other.to_owned()),
        }
    })?;
    eventually("the hog of files has begun", || {
        let phases = "jsonpath={.items[?(@.metadata.name!=\"good\")].status.phase}";
        let phases = machine
            .kubectl(["get", "pods", "-o", phases])
            .map_err(|error| error.to_string())?;
        if phases.contains("Pending") {
            Err(phases)
        } else {
            Ok(())
        }
    })?;
    for _ in 0..5 {
        ensure!(
            exec(&machine, "good", &["echo", "well"])?.trim() == "well",
            "the good pod answers"
        );
        let condition = "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].status}";
        ensure!(
            machine.kubectl(["get", "nodes", "-o", condition])? == "True",
            "the node is ready"
        );
    }
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    ensure!(
        machine.kubectl(["get", "pod", "good", "-o", restarts])? == "0",
        "it was let alone"
    );
    let mut deletion = machine.kubectl_command(&process::kubectls()?.pop().context("a kubectl")?);
    deletion
        .args(["delete", "pods", "--all", "--timeout=60s"])
        .stdout(Stdio::null());
    process::run(&mut deletion)?;
    machine.finish()
}
