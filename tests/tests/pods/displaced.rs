//! Pods that are preempted or evicted by a taint.

use std::time::Duration;

use tests::images;
use tests::machine::{Machine, eventually};

/// A taint's eviction writes a condition before the agent's own: the agent must still see that its status is stored.
#[test]
fn pods_that_a_taint_drives_out_go_away() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("taint")?;
    let image = images::nginx(&machine)?;
    machine.kubectl(["run", "web", "--image", &image])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"])?;
    machine.kubectl(["taint", "node", "--all", "out=now:NoExecute"])?;
    eventually("the pod is gone", || {
        let left = machine.kubectl(["get", "pods", "-o", "yaml", "--ignore-not-found", "web"]);
        match left.map_err(|error| error.to_string())? {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    })?;
    machine.finish()
}

/// One seat, a resource that the agent does not count: a replication controller's pod is preempted
/// by a more important one, which a user's taint then evicts, but not before its toleration
/// expires.
#[test]
fn pods_give_way_to_more_important_ones_and_to_taints_in_time() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("seat")?;
    let image = images::nginx(&machine)?;
    let node = machine.kubectl(["get", "nodes", "-o=jsonpath={.items[0].metadata.name}"])?;
    let seats = r#"{"status": {"capacity": {"example.com/seat": "1"}}}"#;
    machine.kubectl([
        "patch",
        "node",
        &node,
        "--subresource=status",
        "--type=merge",
        "-p",
        seats,
    ])?;
    machine.kubectl(["create", "priorityclass", "high", "--value=1000"])?;
    let seat = r#"{"limits": {"example.com/seat": "1"}, "requests": {"example.com/seat": "1"}}"#;
    let container = format!(r#"[{{"name": "web", "image": "{image}", "resources": {seat}}}]"#);
    let elder = format!(
        r#"{{"apiVersion": "v1", "kind": "ReplicationController", "metadata": {{"name": "elder"}}, "spec": {{"replicas": 1,
            "template": {{"metadata": {{"labels": {{"app": "elder"}}}}, "spec": {{"containers": {container}}}}}}}}}"#
    );
    let high = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "high"}}, "spec": {{"priorityClassName": "high",
            "tolerations": [{{"key": "out", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}}], "containers": {container}}}}}"#
    );
    let home = tempfile::tempdir()?;
    let apply = |name: &str, object: &str| {
        let file = home.path().join(name);
        std::fs::write(&file, object)?;
        machine.kubectl(["apply", "-f", &file.display().to_string()])
    };
    let shows = |what: &str, words: &[&str], wanted: &str| {
        eventually(what, || {
            let said = machine
                .kubectl(words.iter().copied())
                .map_err(|error| error.to_string())?;
            if said.contains(wanted) { Ok(()) } else { Err(said) }
        })
    };
    apply("elder", &elder)?;
    shows(
        "the elder is ready",
        &["get", "rc", "elder", "-o=jsonpath={.status.readyReplicas}"],
        "1",
    )?;
    apply("high", &high)?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/high", "--timeout=60s"])?;
    shows("the elder's pod was displaced", &["get", "events"], "Preempted by pod ")?;
    let pods = ["get", "pods", "-l=app=elder", "-o=jsonpath={.items[*].status.phase}"];
    shows("its successor waits", &pods, "Pending")?;
    let tainted = super::clock();
    machine.kubectl(["taint", "node", &node, "out=now:NoExecute"])?;
    machine.kubectl(["wait", "--for=delete", "pod/high", "--timeout=60s"])?;
    assert!(tainted() >= Duration::from_secs(2), "{:?}", tainted());
    machine.finish()
}
