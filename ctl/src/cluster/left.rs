//! Remains of a cluster, or of a node, on the machine: detected in the kernel, independently of the
//! removal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::net::if_::if_nameindex;

use super::settings::Settings;
use super::{agent_directory, down, pki};
use crate::netlink;

/// Time in which containerd's shims end after their tasks.
const SHIMS: Duration = Duration::from_secs(3);

/// Lists what is left of a state directory with these settings, one per line.
pub(super) fn list(state_dir: &Path, settings: &Settings) -> anyhow::Result<Vec<String>> {
    let mut left = processes(state_dir, settings);
    left.extend(mounts(state_dir)?);
    left.extend(links(state_dir, settings));
    left.extend(tables(settings));
    left.extend(groups(settings));
    let files = [state_dir.to_owned(), pki(state_dir)];
    // The unit of a control plane has a directory that systemd-tmpfiles creates.
    let is_there = |path: &&PathBuf| fs::symlink_metadata(path).is_ok();
    left.extend(
        files
            .iter()
            .filter(is_there)
            .map(|path| format!("file {}", path.display())),
    );
    Ok(left)
}

/// Like [`list`], after processes that end on their own have ended.
pub(super) async fn settled(state_dir: &Path, settings: &Settings) -> anyhow::Result<Vec<String>> {
    let begun = tokio::time::Instant::now();
    loop {
        let left = list(state_dir, settings)?;
        let ends = |line: &String| line.starts_with("process ");
        if !left.iter().any(ends) || begun.elapsed() > SHIMS {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns processes of our programs with the directory in their arguments, and all processes in
/// cgroups of pods.
fn processes(state_dir: &Path, settings: &Settings) -> Vec<String> {
    let folder = state_dir.display().to_string();
    let group = format!("/{}/", settings.cgroup_root.trim_matches('/'));
    let callers = callers();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        let line = text("cmdline").replace('\0', " ");
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        let is_ours = program.starts_with("skiff") || program.starts_with("containerd-shim");
        let is_held = text("cgroup").lines().any(|own| format!("{own}/").contains(&group));
        if !callers.contains(&pid) && (is_held || (is_ours && line.contains(&folder))) {
            let line: String = line.trim().chars().take(120).collect();
            found.push(format!("process {pid}: {} {line}", text("comm").trim()));
        }
    }
    found
}

/// Returns this process and its ancestors.
fn callers() -> BTreeSet<u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let own = std::iter::successors(Some(std::process::id()), |pid| parent(*pid));
    own.take_while(|pid| *pid > 1).collect()
}

/// Returns mounts, including those of network namespaces.
fn mounts(state_dir: &Path) -> anyhow::Result<Vec<String>> {
    let all = fs::read("/proc/self/mountinfo").context("read the mounts")?;
    let real = fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    Ok(down::mounted_inside(&all, &real)
        .map(|point| format!("mount {}", point.display()))
        .collect())
}

/// Returns the bridge, its tunnel, and links marked by the agent's network.
fn links(state_dir: &Path, settings: &Settings) -> Vec<String> {
    let mark = agent_directory(state_dir).join("network").display().to_string();
    let own = [settings.bridge.clone(), format!("{}-vx", settings.bridge)];
    // Not those of /sys, which may belong to another network namespace.
    let Ok(links) = if_nameindex() else {
        return Vec::new();
    };
    let is_ours = |name: &String| {
        let alias = fs::read_to_string(format!("/sys/class/net/{name}/ifalias")).unwrap_or_default();
        own.contains(name) || alias.trim() == mark
    };
    let names = links.iter().map(|link| link.name().to_string_lossy().into_owned());
    names.filter(is_ours).map(|name| format!("link {name}")).collect()
}

/// Returns nftables tables that are named after the bridge.
fn tables(settings: &Settings) -> Vec<String> {
    let plain = |name: &str| name.replace(['-', '.'], "_");
    let own = plain(&format!("skiff_{}", settings.bridge));
    let is_ours = |name: &String| {
        let name = plain(name);
        name.strip_prefix(&own)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let all = netlink::tables().unwrap_or_default().into_iter();
    all.filter(is_ours).map(|name| format!("nft table {name}")).collect()
}

/// Returns cgroups of all hierarchies.
fn groups(settings: &Settings) -> Vec<String> {
    let root = settings.cgroup_root.trim_matches('/');
    let all = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(all)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let hierarchies = std::iter::once(all.to_owned()).chain(hierarchies);
    let groups = hierarchies.map(|hierarchy| hierarchy.join(root));
    let groups = groups.filter(|group| !root.is_empty() && group.is_dir());
    // A link points to a hierarchy that has another name as well.
    let groups: BTreeSet<PathBuf> = groups.filter_map(|group| fs::canonicalize(group).ok()).collect();
    groups
        .into_iter()
        .map(|group| format!("cgroup {}", group.display()))
        .collect()
}
