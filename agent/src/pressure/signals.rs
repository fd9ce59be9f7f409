//! What there is left of memory, disks and processes. A few reads of the kernel's files.

use std::path::Path;
use std::sync::Arc;

use agent_plan::eviction::{Observation, Observations, Signal};

use crate::context::Context;

/// Looks; what cannot be seen is missing.
pub(super) async fn observe(context: &Arc<Context>) -> Observations {
    if context.config.upkeep.thresholds.all.is_empty() {
        return Observations::new();
    }
    let context = Arc::clone(context);
    // A file system of somebody else may not answer for a while.
    let looked = tokio::task::spawn_blocking(move || observe_now(&context)).await;
    looked.unwrap_or_default()
}

fn observe_now(context: &Context) -> Observations {
    let mut all = Observations::new();
    if let Some(used) = context.parts.runtime.usage(None).working_set {
        let capacity = context.machine.memory_bytes;
        let available = capacity.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX));
        all.insert(Signal::MemoryAvailable, Observation { available, capacity });
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

/// A file system.
pub(super) struct Disk {
    pub(super) space: Observation,
    inodes: Observation,
}

/// The file system that a directory is on.
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

/// The kernel gives each thread a number of its own.
fn processes() -> Option<Observation> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<i64>().ok();
    let most = number("/proc/sys/kernel/pid_max")?;
    let capacity = number("/proc/sys/kernel/threads-max").map_or(most, |threads| threads.min(most));
    // `0.20 0.18 0.12 1/80 11206`: running and all.
    let load = read("/proc/loadavg")?;
    let (_, all) = load.split_whitespace().nth(3)?.split_once('/')?;
    let available = capacity.saturating_sub(all.parse().ok()?);
    Some(Observation { available, capacity })
}
