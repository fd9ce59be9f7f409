//! Parents of containers: a sandbox's supervisor, or its shim.
#![allow(dead_code, reason = "each test uses a part of it")]

use super::{Kind, Machine};

/// Parent of a process: with containerd, that of an init process is the shim.
pub(crate) fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads it from the sandbox's record: until it has exited, a container's parent is the child that
/// created it.
pub(crate) fn supervisor(machine: &Machine, sandbox: &str) -> i32 {
    let record = machine
        .directory
        .path()
        .join(format!("state/sandboxes/{sandbox}/sandbox.json"));
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    i32::try_from(record["supervisor"].as_i64().unwrap()).unwrap()
}

/// Processes in the cgroup of all supervisors, including their zygote.
pub(crate) fn supervisors(cgroup_root: &str) -> Vec<i32> {
    let groups = super::remains::groups(&format!("{cgroup_root}/supervisors"));
    let listed = groups
        .iter()
        .find_map(|group| std::fs::read_to_string(group.join("cgroup.procs")).ok());
    listed
        .unwrap_or_default()
        .lines()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Returns the supervisor or shim of the container with this init process.
pub(crate) fn holder(machine: &Machine, sandbox: &str, pid: i32) -> i32 {
    match machine.kind {
        Kind::Embedded => supervisor(machine, sandbox),
        Kind::Containerd => parent(pid),
    }
}
