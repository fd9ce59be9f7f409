//! Pods that were evicted and are still ending: they are not selected again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time to remove the rest of a pod after one and a half grace periods.
const CLEANUP: Duration = Duration::from_secs(30);

/// Recently evicted pods, by UID.
#[derive(Default)]
pub(super) struct Evicted(BTreeMap<String, Told>);

struct Told {
    at: Instant,
    patience: Duration,
}

impl Evicted {
    /// Adds a pod that is told `now` to end within `grace` seconds; returns whether it is new. A
    /// pod that remains after twice its deadline is told again.
    pub(super) fn add(&mut self, uid: &str, grace: i64, now: Instant) -> bool {
        self.0.retain(|_, told| now.duration_since(told.at) < 2 * told.patience);
        if self.0.contains_key(uid) {
            return false;
        }
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        let patience = grace + grace / 2 + CLEANUP;
        self.0.insert(uid.to_owned(), Told { at: now, patience });
        true
    }

    /// Time until which an evicted pod is waited for before the next one is chosen.
    pub(super) fn deadline(&self, uid: &str) -> Option<Instant> {
        self.0.get(uid).map(|told| told.at + told.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_going_is_not_chosen_once_more() {
        let (mut evicted, begun) = (Evicted::default(), Instant::now());
        let later = |seconds| begun + Duration::from_secs(seconds);
        assert!(evicted.add("a", 0, begun));
        assert!(!evicted.add("a", 0, later(59)));
        assert!(evicted.add("b", 80, later(59)), "but others");
        assert!(evicted.add("a", 0, later(60)), "it may not have heard");
        assert!(!evicted.add("b", 80, later(59 + 299)));
    }

    #[test]
    fn others_wait_for_its_grace_period_and_half_of_it() {
        let (mut evicted, begun) = (Evicted::default(), Instant::now());
        evicted.add("a", 1, begun);
        evicted.add("b", 80, begun);
        let waited = |uid| evicted.deadline(uid).map(|deadline| deadline - begun);
        assert_eq!(waited("a"), Some(Duration::from_millis(31_500)));
        assert_eq!(waited("b"), Some(Duration::from_secs(150)));
        assert_eq!(waited("c"), None);
    }
}
