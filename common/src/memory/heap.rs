//! Settings of glibc's allocator.

/// Maximum free heap of a busy process: releasing it and allocating it again would cost more than
/// it saves.
pub(crate) const FREE: usize = 8 << 20;
/// Maximum free heap of an idle process.
pub(crate) const FREE_AT_REST: usize = 1 << 20;

/// Trim threshold of a heap (`M_TRIM_THRESHOLD`): growing again costs a page fault for every page, but nothing else trims any
/// heap but the main one.
#[cfg(target_env = "gnu")]
const END: libc::c_int = 4 << 20;

/// Number of heaps for all threads (`M_ARENA_MAX`). By default glibc gives each thread its own:
/// objects are allocated by one thread and freed by another, so that many heaps end up half empty,
/// which costs more memory than lock contention costs time. Threads are assigned in turn: with two
/// heaps, half of the other threads do not contend with the main thread.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
pub fn share(heaps: u8) {
    // SAFETY: sets numbers; called before any other thread exists.
    let set = unsafe {
        [
            libc::mallopt(libc::M_ARENA_MAX, heaps.into()),
            libc::mallopt(libc::M_TRIM_THRESHOLD, END),
        ]
    };
    if set.contains(&0) {
        tracing::debug!("the allocator keeps its own settings");
    }
}

/// Does nothing: the program has an allocator of its own.
#[cfg(not(target_env = "gnu"))]
pub fn share(_heaps: u8) {}

/// Returns free heap memory to the kernel. By itself the allocator only trims the heap's end, which
/// a long-lived object often prevents after a burst of work.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallinfo2 and malloc_trim have no safe wrappers")]
pub(crate) fn trim(allowed: usize) {
    // SAFETY: reads counters under the allocator's own lock.
    let free = unsafe { libc::mallinfo2() }.fordblks;
    if free > allowed {
        // SAFETY: releases pages that nothing uses, under the allocator's own lock.
        let released = unsafe { libc::malloc_trim(0) };
        tracing::debug!(free, released, "memory looked through");
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim(_allowed: usize) {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    fn resident() -> usize {
        let text = fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn what_comes_free_goes_back_whichever_heap_has_it() {
        share(2);
        let before = resident();
        for _ in 0..3 {
            let burst = || drop((0..600).map(|_| vec![1_u8; 60_000]).collect::<Vec<_>>());
            thread::spawn(burst).join().unwrap();
        }
        trim(FREE_AT_REST);
        let more = resident().saturating_sub(before);
        assert!(more < 12 << 20, "{more}");
    }
}
