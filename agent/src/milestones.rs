//! When a pod took each step of its start. Its status tells whole seconds; this tells microseconds, from memory, of the pods
//! that this process started last.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use agent_plan::Timestamp;
use serde::Serialize;

/// Pods that are remembered.
const PODS: usize = 1024;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// The agent learned of the pod.
    Seen,
    /// The pod has a network namespace and its address.
    Network,
    /// There is a process that containers can be started by.
    Sandbox,
    /// The volumes hold what they shall.
    Volumes,
    /// The runtime has made the first container.
    Created,
    /// The program of the first container runs.
    Started,
    /// The agent found the pod ready.
    Ready,
}

/// The times of one pod.
pub(crate) type Times = BTreeMap<Step, Timestamp>;

/// The times of all.
#[derive(Default)]
pub(crate) struct Milestones {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    pods: BTreeMap<String, Times>,
    /// In the order in which they came.
    order: VecDeque<String>,
}

impl Milestones {
    /// Notes a step; only its first time counts.
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

    /// What is known of a pod.
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
