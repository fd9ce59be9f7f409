//! Lines in which writers wait for each other where trying at once would make all of them start over.

use tokio::sync::{Mutex, MutexGuard};

/// How many there are. Those that share one wait for each other without need.
const LINES: usize = 32;

/// Lines, shared by the names that writers stand in them for.
pub(crate) struct Lines([Mutex<()>; LINES]);

impl Default for Lines {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(())))
    }
}

impl Lines {
    /// Waits for the turn of whoever writes what has this name.
    pub(crate) async fn turn(&self, name: &str) -> Option<MutexGuard<'_, ()>> {
        let hash = name.bytes().fold(0_usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        Some(self.0.get(hash % LINES)?.lock().await)
    }
}
