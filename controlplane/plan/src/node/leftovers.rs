//! Pod garbage collection: pods whose node is gone, and finished pods above a threshold.

use k8s_openapi::jiff::Timestamp;

use crate::node::departure::{Why, mark};
use crate::objects::{Meta as _, target};
use crate::pod::Pod;
use crate::pod::is_finished;
use crate::step::{Outcome, PODS, Step};

/// Number of finished pods that are kept.
pub const THRESHOLD: usize = 12_500;

/// Fails and deletes the pods of a missing node.
pub fn of_gone_node(pods: &[&Pod], now: Timestamp) -> [Vec<Step>; 2] {
    let why = Why {
        reason: "DeletionByPodGC",
        message: "PodGC: node no longer exists",
        phase: Some("Failed"),
    };
    let unfinished = pods.iter().filter(|pod| !is_finished(pod));
    let marks = unfinished.map(|pod| mark(pod, why, now));
    [marks.collect(), pods.iter().map(|pod| remove(pod)).collect()]
}

/// Deletes the oldest finished pods above the threshold.
pub fn of_the_past(pods: &[&Pod]) -> Vec<Step> {
    let mut finished: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| is_finished(pod) && !pod.metadata.is_deleting())
        .collect();
    let surplus = finished.len().saturating_sub(THRESHOLD);
    if surplus == 0 {
        return Vec::new();
    }
    finished.sort_by_key(|pod| (pod.metadata.created, pod.metadata.name()));
    finished.into_iter().take(surplus).map(remove).collect()
}

/// Deletes without a grace period: no agent is left to honor one.
fn remove(pod: &Pod) -> Step {
    Step::Delete {
        target: target(PODS, pod),
        resource_version: None,
        propagation: None,
        grace_seconds: Some(0),
        outcome: Outcome::default(),
    }
}
