//! Pods that were told to go: they are not chosen once more while they do.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// One that is still there after this, twice what is waited for it, may not have heard of it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Those that were told of late, by uid.
#[derive(Default)]
pub(super) struct Evicted(BTreeMap<String, Instant>);

impl Evicted {
    /// Adds a pod that is told `now`; answers whether it was not told before.
    pub(super) fn add(&mut self, uid: &str, now: Instant) -> bool {
        self.0.retain(|_, told| now.duration_since(*told) < PATIENCE);
        if self.0.contains_key(uid) {
            return false;
        }
        self.0.insert(uid.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_going_is_not_chosen_once_more() {
        let (mut evicted, begun) = (Evicted::default(), Instant::now());
        assert!(evicted.add("a", begun));
        assert!(!evicted.add("a", begun + Duration::from_secs(59)));
        assert!(evicted.add("b", begun + Duration::from_secs(59)), "but others");
        assert!(evicted.add("a", begun + PATIENCE), "it may not have heard");
    }
}
