//! Real pods that use more of the node's disk or memory than they may, or than there is.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::parts::Parts;
use tests::{images, process};

use start::Started;

#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
#[path = "pressure/memory.rs"]
mod memory;
#[path = "containers/start.rs"]
mod start;

fn read(machine: &Machine, what: &[&str]) -> anyhow::Result<Value> {
    let text = machine.kubectl(["get", "-o", "json"].into_iter().chain(what.iter().copied()))?;
    Ok(serde_json::from_str(&text)?)
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn apply(machine: &Machine, name: &str, pods: &[String]) -> anyhow::Result<()> {
    let file = machine.state().join(format!("{name}.yaml"));
    std::fs::write(&file, pods.join("\n---\n"))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    Ok(())
}

fn pod(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, {spec}}}}}"
    )
}

/// Waits until a pod has failed; answers its reason and message.
fn failed(machine: &Machine, name: &str) -> anyhow::Result<(String, String)> {
    eventually(&format!("{name} fails"), || {
        let pod = read(machine, &["pod", name]).map_err(|error| error.to_string())?;
        let status = format!("{:#}", pod.get("status").unwrap_or(&Value::Null));
        if text(&pod, "/status/phase") != "Failed" {
            return Err(status);
        }
        let alive = pod.pointer("/status/containerStatuses/0/state/running").is_some();
        if alive {
            return Err(format!("it has failed and runs: {status}"));
        }
        Ok((
            text(&pod, "/status/reason").to_owned(),
            text(&pod, "/status/message").to_owned(),
        ))
    })
}

fn phase(machine: &Machine, name: &str) -> anyhow::Result<String> {
    Ok(text(&read(machine, &["pod", name])?, "/status/phase").to_owned())
}

fn full_pods(machine: &Machine) -> anyhow::Result<()> {
    let image = images::busybox(machine)?;
    let run = |name: &str, script: &str, limit: &str| {
        let limit = if limit.is_empty() {
            String::new()
        } else {
            format!(", resources: {{limits: {{ephemeral-storage: {limit}}}}}")
        };
        let mount = ", volumeMounts: [{name: data, mountPath: /data}]";
        format!("{{name: {name}, image: \"{image}\", command: [sh, -c, \"{script}; sleep 100000\"]{limit}{mount}}}")
    };
    let data = "volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]";
    let write = |file: &str, size: u32| format!("dd if=/dev/zero of={file} bs=1M count={size}");
    let quiet = run("b", "true", "10Mi");
    let pods = [
        pod(
            "volume",
            &format!("{data}, containers: [{}]", run("a", &write("/data/it", 2), "")),
        ),
        pod(
            "layer",
            &format!("{data}, containers: [{}]", run("a", &write("/it", 2), "1Mi")),
        ),
        pod(
            "hosts",
            &format!("{data}, containers: [{}]", run("a", &write("/etc/hosts", 2), "1Mi")),
        ),
        pod(
            "two",
            &format!("{data}, containers: [{}, {quiet}]", run("a", &write("/it", 2), "1Mi")),
        ),
        pod(
            "log",
            &format!("{data}, containers: [{}]", run("a", "yes | head -c 2000000", "1Mi")),
        ),
        pod(
            "modest",
            &format!("{data}, containers: [{}]", run("a", &write("/it", 2), "4Mi")),
        ),
    ];
    apply(machine, "pods", &pods)?;
    let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    for (name, expected) in [
        (
            "volume",
            "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ",
        ),
        ("layer", whole),
        ("hosts", whole),
        (
            "two",
            "Container a exceeded its local ephemeral storage limit \"1Mi\". ",
        ),
        ("log", whole),
    ] {
        let told = failed(machine, name)?;
        ensure!(told == ("Evicted".to_owned(), expected.to_owned()), "{name}: {told:?}");
        // Events are told with a delay.
        eventually(&format!("the eviction of {name} is told"), || {
            let selector = format!("involvedObject.name={name},reason=Evicted");
            let events = machine.kubectl(["get", "events", "--field-selector", &selector]);
            let events = events.map_err(|error| error.to_string())?;
            events.contains(expected.trim_end()).then_some(()).ok_or(events)
        })?;
    }
    ensure!(phase(machine, "modest")? == "Running");
    Ok(())
}

/// Runs the test for each runtime.
fn with(
    parts: Parts,
    environment: &[(&str, &str)],
    test: &str,
    story: fn(&Machine) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    tests::logging();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(Box::pin(async {
        let started = Started::with(parts, test, environment).await?;
        story(&started.machine)?;
        started.finish().await
    }))
}

const CONTAINERD: Parts = Parts {
    containerd: true,
    cni: false,
};

#[test]
fn attack_20_pods_that_fill_the_disk_are_evicted() -> anyhow::Result<()> {
    with(Parts::default(), &[], "storage", full_pods)
}

#[test]
fn attack_20_pods_of_containerd_that_fill_the_disk_are_evicted() -> anyhow::Result<()> {
    with(CONTAINERD, &[], "storage", full_pods)
}

/// The Node's condition of a type, and whether it has the taint for it.
fn condition(machine: &Machine, kind: &str, taint: &str) -> anyhow::Result<(String, bool)> {
    let nodes = read(machine, &["nodes"])?;
    let node = nodes.pointer("/items/0").context("a node")?;
    let list = |path: &str| {
        node.pointer(path)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let conditions = list("/status/conditions");
    let own = conditions
        .iter()
        .find(|own| text(own, "/type") == kind)
        .context("its condition")?;
    let tainted = list("/spec/taints").iter().any(|own| text(own, "/key") == taint);
    Ok((text(own, "/status").to_owned(), tainted))
}

fn until(machine: &Machine, kind: &str, taint: &str, expected: (&str, bool)) -> anyhow::Result<()> {
    eventually(&format!("{kind} is {expected:?}"), || {
        let seen = condition(machine, kind, taint).map_err(|error| error.to_string())?;
        if (seen.0.as_str(), seen.1) == expected {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
}

fn node_name(machine: &Machine) -> anyhow::Result<String> {
    Ok(text(&read(machine, &["nodes"])?, "/items/0/metadata/name").to_owned())
}

/// A pod that comes while the disk is full.
fn refused(machine: &Machine, containers: &str) -> anyhow::Result<()> {
    let node = node_name(machine)?;
    apply(
        machine,
        "late",
        &[pod("late", &format!("nodeName: {node}, {containers}"))],
    )?;
    let (reason, message) = failed(machine, "late")?;
    ensure!(reason == "Evicted", "{reason}: {message}");
    ensure!(
        message == "Pod was rejected: The node had condition: [DiskPressure]. ",
        "{message}"
    );
    Ok(())
}

fn evicted_for_its_files(machine: &Machine) -> anyhow::Result<()> {
    let (reason, message) = failed(machine, "greedy")?;
    ensure!(reason == "Evicted", "{reason}: {message}");
    let begin = "The node was low on resource: ephemeral-storage. Threshold quantity: 160Mi, available: ";
    ensure!(message.starts_with(begin), "{message}");
    let end = "request is 0, has larger consumption of ephemeral-storage. ";
    ensure!(
        message.contains("Container a was using ") && message.ends_with(end),
        "{message}"
    );
    let greedy = read(machine, &["pod", "greedy"])?;
    let conditions = greedy
        .pointer("/status/conditions")
        .map(Value::to_string)
        .unwrap_or_default();
    ensure!(
        conditions.contains("DisruptionTarget") && conditions.contains("TerminationByKubelet"),
        "{conditions}"
    );
    Ok(())
}

#[test]
fn a_full_disk_costs_unused_images_and_then_the_pod_that_fills_it() -> anyhow::Result<()> {
    tests::logging();
    let environment = [
        ("SKIFF_EVICTION_HARD", "nodefs.available<40%"),
        ("SKIFF_EVICTION_PRESSURE_TRANSITION_PERIOD", "20s"),
        ("SKIFF_MINIMUM_IMAGE_TTL_DURATION", "0"),
    ];
    let setup = Setup {
        environment: &environment,
        disk: Some(400),
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("full")?, setup)?;
    let (image, unused) = (images::busybox(&machine)?, images::nginx(&machine)?);
    let run = |name: &str, script: &str| {
        let script = format!("{script}; sleep 100000");
        format!("containers: [{{name: {name}, image: \"{image}\", command: [sh, -c, \"{script}\"]}}]")
    };
    apply(&machine, "modest", &[pod("modest", &run("a", "true"))])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/modest", "--timeout=60s"])?;
    let layers = || anyhow::Ok(std::fs::read_dir(machine.state().join("agent/images/layers"))?.count());
    let before = layers()?;
    let fill = "until [ -e /go ]; do sleep 0.1; done; dd if=/dev/zero of=/it bs=1M count=270";
    apply(&machine, "greedy", &[pod("greedy", &run("a", fill))])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/greedy", "--timeout=60s"])?;
    // Images that were imported are kept for as long as they have a name. One of these is in use all the same.
    for name in [&image, &unused] {
        let socket = machine.state().join("agent/agent.sock");
        let target = format!("http://agent/images?name={name}");
        process::run(
            Command::new("curl")
                .args(["-sS", "--fail", "-X", "DELETE", &target, "--unix-socket"])
                .arg(socket),
        )?;
    }
    machine.kubectl(["exec", "greedy", "--", "touch", "/go"])?;
    until(
        &machine,
        "DiskPressure",
        "node.kubernetes.io/disk-pressure",
        ("True", true),
    )?;
    refused(&machine, &run("a", "true"))?;
    evicted_for_its_files(&machine)?;
    ensure!(layers()? < before, "the unused image is gone");
    // Events are told with a delay.
    eventually("what the node does about it is told", || {
        let events = machine.kubectl(["get", "events", "-A"]);
        let events = events.map_err(|error| error.to_string())?;
        let told = events.contains("Attempting to reclaim ephemeral-storage");
        told.then_some(()).ok_or(events)
    })?;
    ensure!(phase(&machine, "modest")? == "Running");
    until(
        &machine,
        "DiskPressure",
        "node.kubernetes.io/disk-pressure",
        ("False", false),
    )?;
    machine.kubectl(["exec", "modest", "--", "true"])?;
    machine.finish()
}
