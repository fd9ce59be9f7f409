//! How the allocator keeps memory.

/// One heap for all threads. glibc gives each thread one of its own: objects are allocated by one thread and freed by another,
/// so several heaps end up half empty, which costs more memory than their locks cost time.
pub fn share() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
        // SAFETY: sets a number; called before any other thread exists.
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        if set == 0 {
            tracing::debug!("the allocator keeps several heaps");
        }
    }
}
