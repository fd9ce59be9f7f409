//! Memory pressure: of the node, or of the allocatable memory of all pods.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tests::images;
use tests::machine::{Machine, eventually};
use tests::parts::Parts;

use super::{CONTAINERD, apply, failed, node_name, phase, pod, read, text, until, with};

/// A container that runs a script, with more fields of its own.
fn run(image: &str, script: &str, more: &str) -> String {
    format!("containers: [{{name: a, image: \"{image}\", command: [sh, -c, \"{script}; sleep 100000\"]{more}}}]")
}

fn short_of_memory(machine: &Machine) -> anyhow::Result<()> {
    let image = images::busybox(machine)?;
    let run = |script: &str, more: &str| run(&image, script, more);
    let requests = ", resources: {requests: {memory: 128Mi}}";
    let hold = "dd if=/dev/zero of=/dev/shm/it bs=1M count=32";
    let vital = format!("priorityClassName: system-node-critical, {}", run("true", ""));
    until(
        machine,
        "MemoryPressure",
        "node.kubernetes.io/memory-pressure",
        ("True", true),
    )?;
    let (node, tolerated) = (node_name(machine)?, "tolerations: [{operator: Exists}]");
    let pods = [
        pod("vital", &format!("nodeName: {node}, {vital}")),
        pod("hog", &format!("nodeName: {node}, {tolerated}, {}", run(hold, ""))),
    ];
    apply(machine, "first", &pods)?;
    // Pods are evicted once the grace period is over, whichever have come by then: the hog comes first.
    eventually("the first two have come", || {
        let seen = ["vital", "hog"].map(|name| phase(machine, name).map_err(|error| error.to_string()));
        let [Ok(vital), Ok(hog)] = &seen else {
            return Err(format!("{seen:?}"));
        };
        let come = vital == "Running" && (hog == "Running" || hog == "Failed");
        come.then_some(()).ok_or_else(|| format!("{seen:?}"))
    })?;
    let pods = [
        pod("modest", &format!("nodeName: {node}, {}", run(hold, requests))),
        pod("refused", &format!("nodeName: {node}, {}", run("true", ""))),
    ];
    apply(machine, "pods", &pods)?;
    let (reason, message) = failed(machine, "refused")?;
    ensure!(reason == "Evicted", "{reason}: {message}");
    ensure!(
        message == "Pod was rejected: The node had condition: [MemoryPressure]. ",
        "{message}"
    );
    let (reason, message) = failed(machine, "hog")?;
    ensure!(reason == "Evicted", "{reason}: {message}");
    ensure!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: "),
        "{message}"
    );
    let end = "request is 0, has larger consumption of memory. ";
    ensure!(
        message.contains("Container a was using ") && message.ends_with(end),
        "{message}"
    );
    let (reason, message) = failed(machine, "modest")?;
    ensure!(
        reason == "Evicted" && !message.contains("larger consumption"),
        "{reason}: {message}"
    );
    ensure!(phase(machine, "vital")? == "Running", "never a critical one");
    let ended = |name: &str| -> anyhow::Result<String> {
        let path = "/status/containerStatuses/0/state/terminated/finishedAt";
        Ok(text(&read(machine, &["pod", name])?, path).to_owned())
    };
    ensure!(
        ended("hog")? < ended("modest")?,
        "who uses more than it asked for goes first"
    );
    Ok(())
}

/// There is never so much memory left.
const SHORT: [(&str, &str); 2] = [
    ("SKIFF_EVICTION_SOFT", "memory.available<99.9%"),
    ("SKIFF_EVICTION_SOFT_GRACE_PERIOD", "memory.available=30s"),
];

#[test]
fn short_memory_costs_the_pod_that_uses_most_beyond_its_request() -> anyhow::Result<()> {
    with(Parts::default(), &SHORT, "memory", short_of_memory)
}

#[test]
fn short_memory_costs_the_same_pod_with_containerd() -> anyhow::Result<()> {
    with(CONTAINERD, &SHORT, "memory", short_of_memory)
}

/// Memory of all pods together, in KiB.
const TOGETHER: u64 = 512 << 10;

/// Keeps the rest of the machine's memory from pods.
fn with_little_together(parts: Parts) -> anyhow::Result<()> {
    let machine = std::fs::read_to_string("/proc/meminfo")?;
    let all = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let all: u64 = all.context("its memory")?.trim().trim_end_matches(" kB").parse()?;
    let reserved = format!("memory={}Ki", all.saturating_sub(TOGETHER));
    let environment = [
        ("SKIFF_EVICTION_HARD", "memory.available<200Mi"),
        ("SKIFF_EVICTION_PRESSURE_TRANSITION_PERIOD", "12s"),
        ("SKIFF_SYSTEM_RESERVED", reserved.as_str()),
    ];
    with(parts, &environment, "together", short_together)
}

fn short_together(machine: &Machine) -> anyhow::Result<()> {
    let image = images::busybox(machine)?;
    // Each second one more process holds 16 MiB that are never read.
    let fill = "while :; do dd if=/dev/zero bs=16M count=1 | sleep 100000 & sleep 1; done";
    let requests = ", resources: {requests: {memory: 64Mi}}";
    let pods = [
        pod("modest", &run(&image, "true", requests)),
        pod("greedy", &run(&image, fill, "")),
    ];
    apply(machine, "pods", &pods)?;
    let taint = "node.kubernetes.io/memory-pressure";
    until(machine, "MemoryPressure", taint, ("True", true))?;
    let (reason, message) = failed(machine, "greedy")?;
    ensure!(reason == "Evicted", "{reason}: {message}");
    let begin = "The node was low on resource: memory. Threshold quantity: 200Mi, available: ";
    ensure!(message.starts_with(begin), "{message}");
    let end = "request is 0, has larger consumption of memory. ";
    ensure!(
        message.contains("Container a was using ") && message.ends_with(end),
        "{message}"
    );
    let greedy = read(machine, &["pod", "greedy"])?;
    let own = greedy
        .pointer("/status/containerStatuses/0")
        .context("its container's status")?;
    let restarts = own.pointer("/restartCount").and_then(Value::as_i64);
    ensure!(restarts == Some(0), "{own:#}");
    ensure!(text(own, "/state/terminated/reason") != "OOMKilled", "{own:#}");
    ensure!(phase(machine, "modest")? == "Running");
    until(machine, "MemoryPressure", taint, ("False", false))
}

#[test]
fn pods_that_fill_what_all_may_have_are_evicted_before_the_kernel_kills() -> anyhow::Result<()> {
    with_little_together(Parts::default())
}

#[test]
fn pods_of_containerd_that_fill_what_all_may_have_are_evicted_too() -> anyhow::Result<()> {
    with_little_together(CONTAINERD)
}
