//! Clean-up of what failed tests leave on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Directories of this control group in all hierarchies that have it.
pub(crate) fn groups(root: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchies = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let places = hierarchies.filter_map(|line| line.split(' ').nth(4));
    let places = places.map(|place| Path::new(place).join(root));
    places.filter(|place| place.exists()).collect()
}

/// Processes whose working directory or arguments refer to a directory.
pub(crate) fn processes(directory: &Path) -> Vec<(i32, bool)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let works = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let told = String::from_utf8_lossy(&line).contains(&*directory.to_string_lossy());
        if works || told {
            found.push((pid, works));
        }
    }
    found
}

/// Kills processes, unmounts and removes groups, as far as possible. Finished tests have none.
pub(crate) fn remove(directory: &Path, cgroup_root: &str) {
    let crashed = format!("{cgroup_root}-crashed");
    let roots: Vec<PathBuf> = [cgroup_root, &crashed].into_iter().flat_map(groups).collect();
    let mut all = Vec::new();
    for root in &roots {
        below(root, &mut all);
    }
    let begun = Instant::now();
    loop {
        let members = all.iter().flat_map(|group| {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            listed
                .lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<i32>>()
        });
        let mut left: Vec<i32> = members.collect();
        left.extend(processes(directory).into_iter().map(|(pid, _)| pid));
        if left.is_empty() || begun.elapsed() > TIMEOUT {
            break;
        }
        for pid in left {
            // It may have exited.
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(4));
    for place in places.filter(|place| Path::new(place).starts_with(directory)) {
        umount2(place, MntFlags::MNT_DETACH).ok();
    }
    for group in all {
        fs::remove_dir(group).ok();
    }
    // Groups of other tests may exist there, too.
    let parents = roots.iter().filter_map(|root| root.parent());
    for parent in parents {
        fs::remove_dir(parent).ok();
    }
}

/// Collects a group and all below it, deepest first.
fn below(group: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), into);
        }
    }
    into.push(group.to_owned());
}
