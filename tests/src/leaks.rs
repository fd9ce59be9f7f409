//! The leak check: what a cluster made on the machine must be gone when it is down.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::process;

/// Returns the traces of one cluster on this machine: whatever names its state directory, or lives
/// in its namespace.
///
/// # Errors
/// Fails if the machine's own lists cannot be read.
pub fn traces(state: &Path, namespace: &str) -> anyhow::Result<BTreeSet<String>> {
    let folder = state.display().to_string();
    let mut found = BTreeSet::new();
    for (pid, line) in process::with_command_line(&folder)? {
        if pid.unsigned_abs() != std::process::id() {
            found.insert(format!("process {pid}: {line}"));
        }
    }
    for line in std::fs::read_to_string("/proc/self/mountinfo")?.lines() {
        if line.contains(&folder) {
            found.insert(format!("mount {line}"));
        }
    }
    for pid in pids_inside(namespace)? {
        found.insert(process_in(pid, namespace));
    }
    for name in links_inside(namespace)? {
        found.insert(format!("interface {name}"));
    }
    for line in inside(namespace, &["nft", "list", "tables"])?.lines() {
        found.insert(format!("nft {line}"));
    }
    for family in ["-4", "-6"] {
        for line in inside(namespace, &["ip", family, "route", "show", "type", "blackhole"])?.lines() {
            found.insert(format!("route {line}"));
        }
        // Routes to the pods of other nodes.
        for line in inside(namespace, &["ip", family, "route", "show", "proto", "83"])?.lines() {
            found.insert(format!("route {line}"));
        }
    }
    Ok(found)
}

/// Description in [`traces`] of a process in a namespace.
pub fn process_in(pid: impl std::fmt::Display, namespace: &str) -> String {
    format!("process {pid} in network namespace {namespace}")
}

/// Returns a trace, with the command line of a process; `None` for a process that has ended
/// meanwhile.
pub fn named(trace: &str) -> Option<String> {
    let Some(rest) = trace.strip_prefix("process ") else {
        return Some(trace.to_owned());
    };
    let pid = rest.split([' ', ':']).next()?;
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{trace}: {}", command.trim()))
}

/// Tells whether a named trace is of a shim of containerd.
pub fn is_shim(trace: &str) -> bool {
    trace.starts_with("process ") && trace.ends_with(": containerd-shim")
}

/// Control groups below any hierarchy whose path holds `name`.
///
/// # Errors
/// Fails if the hierarchies cannot be listed.
pub fn cgroups(name: &str) -> anyhow::Result<BTreeSet<String>> {
    let pattern = format!("*{name}*");
    let listing = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &pattern])
        .output()?;
    // Cgroups of other processes that vanish during the listing make it fail, and are of no
    // interest.
    let listing = String::from_utf8(listing.stdout)?;
    Ok(listing.lines().map(str::to_owned).collect())
}

fn inside(namespace: &str, words: &[&str]) -> anyhow::Result<String> {
    process::run(
        Command::new("nsenter")
            .arg(format!("--net=/var/run/netns/{namespace}"))
            .args(words),
    )
}

fn pids_inside(namespace: &str) -> anyhow::Result<Vec<String>> {
    let listing = process::run(Command::new("ip").args(["netns", "pids", namespace]))?;
    // If the caller itself is inside the namespace, the process that listed the pids was too.
    Ok(listing
        .lines()
        .filter(|pid| *pid != std::process::id().to_string() && Path::new("/proc").join(pid).exists())
        .map(str::to_owned)
        .collect())
}

/// Interfaces other than the loopback and the uplink that the test itself made.
fn links_inside(namespace: &str) -> anyhow::Result<Vec<String>> {
    let listing = inside(namespace, &["ip", "-o", "link"])?;
    Ok(listing
        .lines()
        .filter_map(|line| line.split(": ").nth(1))
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .filter(|name| name != "lo" && !name.starts_with("up"))
        .collect())
}
