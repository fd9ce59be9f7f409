//! Pod garbage collection: pods that no agent will end, and finished pods above a threshold
//! (`pkg/controller/podgc/gc_controller.go`).

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::node::departure::{Why, mark};
use crate::node::node_health::is_ready;
use crate::objects::{Meta as _, target};
use crate::pod::{Pod, is_finished, node_of};
use crate::step::{Outcome, PODS, Step};

/// Number of finished pods that are kept.
pub const THRESHOLD: usize = 12_500;

/// Taint by which an administrator confirms that a node is off: its pods have ended.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

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

/// Fails and deletes pods that are being deleted, which no agent will do.
pub fn of_no_agent(pods: &[&Pod]) -> [Vec<Step>; 2] {
    let unfinished = pods.iter().filter(|pod| !is_finished(pod));
    let failed = unfinished.map(|pod| fail(pod));
    [failed.collect(), pods.iter().map(|pod| remove(pod)).collect()]
}

/// True if a node is not ready and tainted as out of service.
pub fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    !is_ready(node) && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// True if a pod is being deleted and was never bound to a node. A finished one has been seen to:
/// its finalizers keep it.
pub fn is_unbound(pod: &Pod) -> bool {
    pod.metadata.is_deleting() && node_of(pod).is_none() && !is_finished(pod)
}

/// Deletes finished pods above the threshold: evicted ones first, then the oldest
/// (`byEvictionAndCreationTimestamp`).
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
    finished.sort_by_key(|pod| (!pod.status.evicted, pod.metadata.created, pod.metadata.name()));
    finished.into_iter().take(surplus).map(remove).collect()
}

fn fail(pod: &Pod) -> Step {
    target(PODS, pod)
        .strategic_status(json!({ "metadata": { "uid": pod.metadata.uid() }, "status": { "phase": "Failed" } }))
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_node_is_out_of_service_if_it_is_tainted_and_not_ready() {
        for (ready, taint, expected) in [
            ("False", OUT_OF_SERVICE, true),
            ("Unknown", OUT_OF_SERVICE, true),
            ("True", OUT_OF_SERVICE, false),
            ("False", "node.kubernetes.io/unreachable", false),
        ] {
            let taints = json!([{ "key": taint, "effect": "NoExecute" }]);
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            let node = json!({ "spec": { "taints": taints }, "status": { "conditions": conditions } });
            let node = from_value(node).unwrap();
            assert_eq!(is_out_of_service(&node), expected, "{ready} {taint}");
        }
    }

    #[test]
    fn evicted_pods_go_first_then_the_oldest() {
        let pod = |name: &str, day: u8, status: Value| {
            let metadata =
                json!({ "name": name, "uid": name, "creationTimestamp": format!("2026-01-0{day}T00:00:00Z") });
            from_value::<Pod>(json!({ "metadata": metadata, "status": status })).unwrap()
        };
        let evicted = json!({ "phase": "Failed", "reason": "Evicted" });
        let (kept, old, older) = (
            pod("kept", 4, json!({ "phase": "Failed", "reason": "NodeLost" })),
            pod("old", 2, json!({ "phase": "Succeeded", "reason": "Evicted" })),
            pod("older", 1, json!({ "phase": "Failed" })),
        );
        let (late, b, a) = (
            pod("late", 6, evicted.clone()),
            pod("b", 5, evicted.clone()),
            pod("a", 5, evicted),
        );
        let runs = pod("runs", 1, json!({ "phase": "Running" }));
        let mut pods = vec![&kept; THRESHOLD];
        assert!(of_the_past(&pods).is_empty());
        pods.extend([&runs, &old, &older, &late, &b, &a]);
        let texts: Vec<String> = of_the_past(&pods).iter().map(ToString::to_string).collect();
        let expected = ["a", "b", "late", "older", "old"].map(|name| format!("delete Pod {name}"));
        assert_eq!(texts, expected);
    }

    #[test]
    fn pods_without_an_agent_fail_and_go_at_once() {
        let pod = |name: &str, status: Value| {
            let metadata = json!({ "name": name, "uid": name, "deletionTimestamp": "2026-01-01T00:00:00Z" });
            from_value::<Pod>(json!({ "metadata": metadata, "spec": { "nodeName": "n" }, "status": status })).unwrap()
        };
        let (runs, ended) = (
            pod("runs", json!({ "phase": "Running" })),
            pod("ended", json!({ "phase": "Succeeded" })),
        );
        let [failed, removed] = of_no_agent(&[&runs, &ended]);
        let texts = |steps: &[Step]| steps.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&failed), ["patch Pod runs/status"]);
        assert_eq!(texts(&removed), ["delete Pod runs", "delete Pod ended"]);
        assert!(
            matches!(failed.as_slice(), [Step::Patch { body, .. }] if body["status"] == json!({ "phase": "Failed" }))
        );
        assert!(matches!(
            removed.first(),
            Some(Step::Delete {
                grace_seconds: Some(0),
                ..
            })
        ));
    }
}
