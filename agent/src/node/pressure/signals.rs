//! Eviction signals: available memory, disk space and processes, read from a few files of the
//! kernel.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use agent_plan::node::eviction::{Layout, Observation, Observations, Signal};
use agent_plan::resources;

use crate::context::Context;

/// Reads the signals; those that cannot be read are missing.
pub(super) async fn observe(context: &Arc<Context>) -> Observations {
    if context.config.upkeep.thresholds.all.is_empty() {
        return Observations::new();
    }
    let context = Arc::clone(context);
    // A foreign file system (NFS, FUSE) may block for a while.
    let looked = common::task::spawn_blocking(move || observe_now(&context)).await;
    looked.unwrap_or_default()
}

fn observe_now(context: &Context) -> Observations {
    let mut all = Observations::new();
    if let Some(used) = context.parts.runtime.usage(None).working_set {
        all.insert(Signal::MemoryAvailable, left(context.machine.memory_bytes, used));
    }
    if let Some(capacity) = memory_of_pods(context)
        && let Some(used) = context.parts.runtime.usage_of_all().working_set
    {
        all.insert(Signal::AllocatableMemoryAvailable, left(capacity, used));
    }
    let node = &context.config.state_directory;
    let images = context.image_directory();
    for (directory, space, inodes) in [
        (node, Signal::NodefsAvailable, Signal::NodefsInodesFree),
        (&images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
    ] {
        let Some(disk) = disk(directory) else { continue };
        all.insert(space, disk.space);
        if disk.inodes.capacity > 0 {
            all.insert(inodes, disk.inodes);
        }
    }
    all.extend(processes().map(|seen| (Signal::PidAvailable, seen)));
    all
}

/// Available memory for a capacity and a usage.
fn left(capacity: i64, used: u64) -> Observation {
    let available = capacity.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX));
    Observation {
        available: available.max(0),
        capacity,
    }
}

/// Memory limit of all pods together, if it is enforced.
fn memory_of_pods(context: &Context) -> Option<i64> {
    let upkeep = &context.config.upkeep;
    let capacity = upkeep
        .enforce
        .then(|| context.machine.capacity(context.config.max_pods))?;
    resources::together(&capacity, &upkeep.reserved).memory
}

/// Returns the file systems of images, container layers and pods. If they cannot be determined, one
/// holds everything.
pub(super) async fn layout(context: &Arc<Context>) -> Layout {
    let context = Arc::clone(context);
    let looked = common::task::spawn_blocking(move || layout_now(&context)).await;
    looked.ok().flatten().unwrap_or_default()
}

fn layout_now(context: &Context) -> Option<Layout> {
    let device = |directory: &Path| Some(std::fs::metadata(directory).ok()?.dev());
    let node = device(&context.config.state_directory)?;
    let images = device(&context.image_directory())?;
    // containerd has writable layers beside its images, the agent in its own state directory.
    let beside_images = context.scheme() == "containerd";
    let layers = if beside_images { images } else { node };
    Some(Layout::of(node, images, layers))
}

/// File system.
pub(super) struct Disk {
    pub(super) space: Observation,
    inodes: Observation,
}

/// Returns the file system of a directory.
pub(super) fn disk(directory: &Path) -> Option<Disk> {
    let stat = nix::sys::statvfs::statvfs(directory).ok()?;
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let bytes = |blocks: u64| number(blocks.saturating_mul(stat.fragment_size()));
    Some(Disk {
        space: Observation {
            available: bytes(stat.blocks_available()),
            capacity: bytes(stat.blocks()),
        },
        inodes: Observation {
            available: number(stat.files_free()),
            capacity: number(stat.files()),
        },
    })
}

/// Returns the available process IDs: each thread has one.
fn processes() -> Option<Observation> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<i64>().ok();
    let most = number("/proc/sys/kernel/pid_max")?;
    let capacity = number("/proc/sys/kernel/threads-max").map_or(most, |threads| threads.min(most));
    // `0.20 0.18 0.12 1/80 11206`: running and total.
    let load = read("/proc/loadavg")?;
    let (_, all) = load.split_whitespace().nth(3)?.split_once('/')?;
    let available = capacity.saturating_sub(all.parse().ok()?);
    Some(Observation { available, capacity })
}
