//! Backoff for deleting failed pods that are made again in the same place, so that a controller does
//! not fight with an agent that rejects them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

/// The first delay and the longest (`cmd/kube-controller-manager/app/apps.go`).
const DELAYS: (i64, i64) = (1, 15 * 60);

/// Backoff of places whose pods fail, by the controller's uid and observed generation: of the nodes
/// of a DaemonSet, as upstream's, and of the ordinals of a StatefulSet, whose pods upstream makes
/// again at once.
#[derive(Debug, Default)]
pub struct Backoff(BTreeMap<(String, i64, String), Entry>);

#[derive(Debug)]
struct Entry {
    seconds: i64,
    since: Timestamp,
}

impl Entry {
    fn age(&self, now: Timestamp) -> i64 {
        now.as_second().saturating_sub(self.since.as_second())
    }

    /// True if the last failure is too long ago to count.
    fn is_over(&self, now: Timestamp) -> bool {
        self.age(now) > DELAYS.1.saturating_mul(2)
    }
}

impl Backoff {
    /// Time for which a failed pod is kept; `None` deletes it now and records that.
    pub(crate) fn next(&mut self, uid: &str, generation: i64, place: &str, now: Timestamp) -> Option<Duration> {
        self.0.retain(|_, entry| !entry.is_over(now));
        let entry = self.0.entry((uid.to_owned(), generation, place.to_owned()));
        let entry = entry.or_insert(Entry { seconds: 0, since: now });
        // The clock may have been set back.
        entry.since = entry.since.min(now);
        let left = entry.seconds.saturating_sub(entry.age(now));
        if left > 0 {
            return Some(Duration::from_secs(left.unsigned_abs()));
        }
        entry.seconds = entry.seconds.saturating_mul(2).clamp(DELAYS.0, DELAYS.1);
        entry.since = now;
        None
    }
}
