//! Pods that the control plane disrupts: the `DisruptionTarget` condition, and the deletion.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::objects::{Meta as _, seconds, target};
use crate::pod::Pod;
use crate::step::{PODS, Severity, Step};

/// Reason and message of the `DisruptionTarget` condition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Why<'a> {
    pub(crate) reason: &'static str,
    pub(crate) message: &'a str,
    /// Phase to set on the pod, if it will not reach another one.
    pub(crate) phase: Option<&'static str>,
}

/// Sets the `DisruptionTarget` condition.
pub(crate) fn mark(pod: &Pod, why: Why<'_>, now: Timestamp) -> Step {
    let mut status = json!({ "conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": why.reason, "message": why.message,
        "lastProbeTime": null, "lastTransitionTime": seconds(now), "observedGeneration": pod.metadata.observed(),
    }] });
    if let (Some(phase), Some(status)) = (why.phase, status.as_object_mut()) {
        status.insert("phase".to_owned(), phase.into());
    }
    target(PODS, pod).strategic_status(json!({ "metadata": { "uid": pod.metadata.uid() }, "status": status }))
}

/// Deletes the pod with its own grace period, and records an event.
pub(crate) fn delete(pod: &Pod, reason: &'static str, message: String) -> Step {
    let about = target(PODS, pod);
    let done = about.note(Severity::Normal, reason, message);
    about.delete().with(Some(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_says_of_which_version_of_the_pod_it_is() {
        let why = Why {
            reason: "DeletionByPodGC",
            message: "PodGC: node no longer exists",
            phase: None,
        };
        for (generation, observed) in [(json!(3), json!(3)), (json!(null), json!(null))] {
            let pod = json!({ "metadata": { "name": "a", "generation": generation } });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let Step::Patch { body, .. } = mark(&pod, why, "2026-01-01T00:00:00Z".parse().unwrap()) else {
                panic!("a mark is a patch");
            };
            assert_eq!(body["status"]["conditions"][0]["observedGeneration"], observed);
        }
    }
}
