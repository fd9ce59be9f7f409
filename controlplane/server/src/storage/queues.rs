//! Queues for writers whose optimistic commits would otherwise all conflict.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// Number of queues. Writers of different names may share one and wait needlessly.
const QUEUES: u64 = 32;

/// Queues of writers, chosen by a keyed hash of the name: clients that choose names must not be
/// able to choose whom they delay.
pub(crate) struct Queues {
    queues: Vec<Mutex<()>>,
    seed: RandomState,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            queues: (0..QUEUES).map(|_| Mutex::new(())).collect(),
            seed: RandomState::new(),
        }
    }
}

impl Queues {
    /// Waits for the turn of a writer of the name.
    pub(crate) async fn turn(&self, name: &str) -> Option<MutexGuard<'_, ()>> {
        Some(self.queues.get(self.index(name))?.lock().await)
    }

    fn index(&self, name: &str) -> usize {
        usize::try_from(self.seed.hash_one(name) % QUEUES).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_chosen_by_a_secret() {
        let all: Vec<Queues> = (0..64).map(|_| Queues::default()).collect();
        for pair in [["Aa", "BB"], ["a", "b"]] {
            let apart = |queues: &&Queues| queues.index(pair[0]) != queues.index(pair[1]);
            assert!(all.iter().any(|queues| apart(&queues)), "{pair:?}");
        }
        let indexes = all.iter().map(|queues| queues.index("a"));
        assert!(indexes.collect::<std::collections::BTreeSet<_>>().len() > 1);
    }
}
