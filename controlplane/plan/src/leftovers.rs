//! Pods that nobody will finish: their node is gone, or too many have ended.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::{
    objects::{Meta as _, is_finished, seconds, target},
    pod::Pod,
    step::{Outcome, PODS, PatchKind, Step},
};

/// How many finished pods are kept.
pub const THRESHOLD: usize = 12_500;

/// Ends and removes the pods of a node that does not exist.
pub fn of_gone_node(pods: &[&Pod], now: Timestamp) -> [Vec<Step>; 2] {
    let marks = pods.iter().filter(|pod| !is_finished(pod)).map(|pod| Step::Patch {
        target: target(PODS, *pod),
        subresource: Some("status"),
        kind: PatchKind::Strategic,
        body: Box::new(json!({
            "metadata": { "uid": pod.metadata.uid() },
            "status": { "phase": "Failed", "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastProbeTime": null, "lastTransitionTime": seconds(now),
            }] },
        })),
        outcome: Outcome::default(),
    });
    [marks.collect(), pods.iter().map(|pod| remove(pod)).collect()]
}

/// Removes the oldest finished pods above the threshold.
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

/// At once: there is nobody who could be graceful.
fn remove(pod: &Pod) -> Step {
    Step::Delete {
        target: target(PODS, pod),
        resource_version: None,
        propagation: None,
        grace_seconds: Some(0),
        outcome: Outcome::default(),
    }
}
