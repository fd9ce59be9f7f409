//! Initial processor of a child that works in parallel with its parent.
//!
//! The kernel leaves a child on its parent's processor unless another one is idle, and in a virtual
//! machine a sleeping one may count as busy. Then the child waits until its parent sleeps, although
//! a processor is free.

use std::fs;
use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// True if children may be moved to other processors.
static MOVABLE: OnceLock<bool> = OnceLock::new();

/// Checks whether this process, and so its children, may use every processor: a process with a
/// restricted affinity is not moved, because its own affinity could not be restored.
pub(in crate::supervisor) fn look() {
    MOVABLE.get_or_init(|| {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let allowed = sched_getaffinity(Pid::from_raw(0)).map(|set| members(&set));
        matches!((count(online.trim()), allowed), (Some(online), Ok(allowed)) if online > 1 && online == allowed)
    });
}

fn movable() -> bool {
    MOVABLE.get() == Some(&true)
}

fn members(set: &CpuSet) -> usize {
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).count()
}

/// Counts the CPUs in a list of the kernel such as `0-3,5`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.split(',').map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        Some(to.checked_sub(from)? + 1)
    });
    ranges.sum()
}

/// All possible processors.
fn all() -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        // Within the set's size.
        set.set(cpu).ok();
    }
    set
}

/// Moves a child that was just forked to another processor. It must call [`come_back`] when this
/// has returned.
pub(in crate::supervisor) fn send_away(child: i32) {
    if !movable() {
        return;
    }
    let mut others = all();
    let here = sched_getcpu().and_then(|here| others.unset(here));
    // A child that cannot be moved waits for this processor.
    here.and_then(|()| sched_setaffinity(Pid::from_raw(child), &others))
        .ok();
}

/// Lets this process, and so the container that it creates, run on every processor.
pub(in crate::supervisor) fn come_back() -> nix::Result<()> {
    if movable() {
        sched_setaffinity(Pid::from_raw(0), &all())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn processors_are_counted_as_the_kernel_lists_them() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,5,8-9"), Some(7));
        for bad in ["", "x", "3-1", "0-"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }
}
