//! Cgroups of pods and `QoS` classes.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tests::machine::eventually;
use tests::process;

use super::cluster::{Cluster, container, is_ready, uid};

/// Returns the cgroup of a process of the pod in the hierarchy of a controller, and the directory
/// of that hierarchy.
pub(crate) fn group(pod: &Value, controller: &str) -> anyhow::Result<(String, String)> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process::container_of(uid(pod))?))?;
    let of = |line: &&str| {
        line.split(':')
            .nth(1)
            .is_some_and(|names| names.split(',').any(|name| name == controller))
    };
    let path = |line: &str| line.splitn(3, ':').nth(2).unwrap_or_default().to_owned();
    let own = groups.lines().find(of);
    let unified = groups.lines().find(|line| line.starts_with("0::"));
    Ok(match own {
        Some(line) => (path(line), format!("/sys/fs/cgroup/{controller}")),
        None => (path(unified.context("a group")?), "/sys/fs/cgroup".to_owned()),
    })
}

/// Pods of one class of service are in one group, which has what they ask for together.
pub(crate) fn it_is_arranged(cluster: &Cluster) -> anyhow::Result<()> {
    for (name, place) in [
        ("web", "/kubepods/"),
        ("tools", "/kubepods/burstable/"),
        ("polite", "/kubepods/besteffort/"),
    ] {
        let pod = cluster.until(name, "runs", |pod| container(pod)["state"]["running"].is_object())?;
        let (path, _) = group(&pod, "cpu")?;
        let parent = path.split(uid(&pod)).next().unwrap_or_default();
        ensure!(parent.ends_with(place), "{name}: {path}");
    }
    let (path, hierarchy) = group(&cluster.until("tools", "runs", is_ready)?, "cpu")?;
    let (above, _) = path.split_once("/burstable/").context("its class")?;
    let read = |file: String| std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    eventually("the class has what its pods ask for", || {
        let files = ["cpu.shares", "cpu.weight"].map(|file| format!("{hierarchy}{above}/burstable/{file}"));
        let seen = files.into_iter().find_map(read);
        // A tenth of a processor, as v1 and v2 count it.
        if matches!(seen.as_deref(), Some("102" | "4")) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })?;
    let (path, hierarchy) = group(&cluster.until("tools", "runs", is_ready)?, "memory")?;
    let (above, _) = path.split_once("/burstable/").context("its class")?;
    let files = ["memory.limit_in_bytes", "memory.max"].map(|file| format!("{hierarchy}{above}/{file}"));
    let node: Value = serde_json::from_str(&cluster.machine.kubectl(["get", "nodes", "-o", "json"])?)?;
    let capacity = node["items"][0]["status"]["capacity"]["memory"]
        .as_str()
        .unwrap_or_default();
    let bytes: u64 = capacity.trim_end_matches("Ki").parse::<u64>()? * 1024;
    let seen = files.into_iter().find_map(read);
    ensure!(seen == Some(bytes.to_string()), "all pods: {seen:?} of {capacity}");
    Ok(())
}
