//! Queues for writers whose optimistic commits would otherwise all conflict.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// Number of queues. Writers of different names may share one and wait needlessly.
const LINES: u64 = 32;

/// Queues of writers, chosen by a keyed hash of the name: clients that choose names must not be
/// able to choose whom they delay.
pub(crate) struct Lines {
    lines: Vec<Mutex<()>>,
    seed: RandomState,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            lines: (0..LINES).map(|_| Mutex::new(())).collect(),
            seed: RandomState::new(),
        }
    }
}

impl Lines {
    /// Waits for the turn of a writer of the name.
    pub(crate) async fn turn(&self, name: &str) -> Option<MutexGuard<'_, ()>> {
        Some(self.lines.get(self.place(name))?.lock().await)
    }

    fn place(&self, name: &str) -> usize {
        usize::try_from(self.seed.hash_one(name) % LINES).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_knows_who_shares_a_line() {
        let all: Vec<Lines> = (0..64).map(|_| Lines::default()).collect();
        for pair in [["Aa", "BB"], ["a", "b"]] {
            let apart = |lines: &&Lines| lines.place(pair[0]) != lines.place(pair[1]);
            assert!(all.iter().any(|lines| apart(&lines)), "{pair:?}");
        }
        let places = all.iter().map(|lines| lines.place("a"));
        assert!(places.collect::<std::collections::BTreeSet<_>>().len() > 1);
    }
}
