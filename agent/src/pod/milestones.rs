//! Times of the steps of a pod's start, in microseconds: the status has whole seconds. Kept in
//! memory for the pods that this process started last.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use agent_plan::Timestamp;
use serde::Serialize;

/// Maximum number of pods on record.
const PODS: usize = 1024;

/// Step of a pod's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// The agent received the pod.
    Seen,
    /// The pod has a network namespace and its address.
    Network,
    /// The sandbox can start containers.
    Sandbox,
    /// The volumes are complete.
    Volumes,
    /// The runtime has made the first container.
    Created,
    /// The first container is running.
    Started,
    /// The pod is ready.
    Ready,
}

/// Times of one pod.
pub(crate) type Times = BTreeMap<Step, Timestamp>;

/// Times of all pods.
#[derive(Default)]
pub(crate) struct Milestones {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    pods: BTreeMap<String, Times>,
    /// UIDs in order of arrival.
    order: VecDeque<String>,
}

impl Milestones {
    /// Records a step; only its first time counts.
    pub(crate) fn note(&self, uid: &str, step: Step, now: Timestamp) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = known.pods.get_mut(uid) {
            times.entry(step).or_insert(now);
            return;
        }
        if known.order.len() >= PODS
            && let Some(oldest) = known.order.pop_front()
        {
            known.pods.remove(&oldest);
        }
        known.order.push_back(uid.to_owned());
        known.pods.insert(uid.to_owned(), Times::from([(step, now)]));
    }

    /// Returns the recorded milestones of a pod.
    pub(crate) fn of(&self, uid: &str) -> Times {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.pods.get(uid).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Milestones, PODS, Step};
    use agent_plan::Timestamp;

    #[test]
    fn the_first_time_counts_and_the_oldest_pods_are_forgotten() {
        let milestones = Milestones::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        milestones.note("a", Step::Seen, at(1));
        milestones.note("a", Step::Seen, at(2));
        milestones.note("a", Step::Ready, at(3));
        assert_eq!(
            milestones.of("a").into_iter().collect::<Vec<_>>(),
            [(Step::Seen, at(1)), (Step::Ready, at(3))]
        );
        for pod in 0..PODS {
            milestones.note(&pod.to_string(), Step::Seen, at(4));
        }
        assert!(milestones.of("a").is_empty());
        assert_eq!(milestones.of("0").len(), 1);
    }
}
