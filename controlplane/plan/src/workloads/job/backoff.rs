//! Delay before a Job replaces pods that failed (`pkg/controller/job/backoff_utils.go`).

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::jiff::Timestamp;

use super::{has_failed, is_valid};
use crate::objects::uid;
use crate::pod::{Pod, phase};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(10);

/// Failures of a Job's pods since the last success. The controller keeps it in memory; a restart
/// resets it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backoff {
    failures: u32,
    last: Option<Timestamp>,
    /// Pods that were counted and whose finalizer is not removed yet.
    seen: BTreeSet<String>,
}

impl Backoff {
    /// Counts the Job's pods that have ended since the last call.
    pub fn observe(&mut self, spec: &JobSpec, pods: &[&Pod]) {
        let ended = |pod: &&&Pod| is_valid(spec, pod) && (phase(pod) == "Succeeded" || has_failed(spec, pod));
        let all: Vec<&Pod> = pods.iter().filter(ended).copied().collect();
        let new = all.iter().filter(|pod| !self.seen.contains(uid(**pod)));
        let time = |pod: &Pod| pod.attempt.as_ref().and_then(|attempt| attempt.ended);
        let (succeeded, failed): (Vec<&Pod>, Vec<&Pod>) = new.copied().partition(|pod| phase(pod) == "Succeeded");
        let success = succeeded.into_iter().map(time).max();
        if success.is_some() {
            self.failures = 0;
            self.last = None;
        }
        let after = failed
            .into_iter()
            .map(time)
            .filter(|at| success.is_none_or(|success| *at > success));
        for at in after {
            self.failures = self.failures.saturating_add(1);
            self.last = self.last.max(at);
        }
        self.seen = all.into_iter().map(|pod| uid(pod).to_owned()).collect();
    }

    /// Time until pods may be created again; zero if they may be now.
    pub(super) fn remaining(&self, now: Timestamp) -> Duration {
        remaining(self.failures, self.last, now)
    }
}

/// The same for the index of a failed pod.
pub(super) fn of_index(failed: &Pod, now: Timestamp) -> Duration {
    let Some(attempt) = failed.attempt.as_deref() else {
        return Duration::ZERO;
    };
    let before = attempt.failures.saturating_add(attempt.ignored);
    let failures = u32::try_from(before).unwrap_or(0).saturating_add(1);
    remaining(failures, attempt.ended, now)
}

fn remaining(failures: u32, last: Option<Timestamp>, now: Timestamp) -> Duration {
    let (Some(doublings), Some(last)) = (failures.checked_sub(1), last) else {
        return Duration::ZERO;
    };
    let wait = FIRST.saturating_mul(1 << doublings.min(16)).min(LONGEST);
    let passed = now.duration_since(last);
    // A clock that was set back does not extend the delay.
    let passed = Duration::try_from(passed).unwrap_or_default();
    wait.saturating_sub(passed)
}
