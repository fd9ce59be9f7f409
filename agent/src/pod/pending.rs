//! Pods that no agent of this node has admitted yet: the order in which they are admitted, and the
//! Node that is used.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::node::admission;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Node, NodeStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::context::Context;

/// Timeout of reading the Node; the last known one is used then.
const LOOK: Duration = Duration::from_secs(5);

impl Context {
    /// The Node as it was last read.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Time of the last iteration of the pod loop.
    pub(crate) fn turned(&self) -> Instant {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn turn(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn see_node(&self, node: &Node) {
        // Only these fields are used.
        let kept = Node {
            metadata: ObjectMeta {
                name: node.metadata.name.clone(),
                uid: node.metadata.uid.clone(),
                labels: node.metadata.labels.clone(),
                deletion_timestamp: node.metadata.deletion_timestamp.clone(),
                ..ObjectMeta::default()
            },
            spec: node.spec.clone(),
            status: Some(NodeStatus {
                allocatable: node.status.as_ref().and_then(|status| status.allocatable.clone()),
                ..NodeStatus::default()
            }),
        };
        self.node.send_if_modified(|known| {
            let labels = known.as_ref().map(|known| &known.metadata.labels);
            let differs = labels != Some(&kept.metadata.labels);
            *known = Some(Arc::new(kept));
            differs
        });
    }
}

/// True if an agent of this node admitted the pod before.
fn is_admitted(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// Sort key of a listed pod: admitted pods first, the others by creation time.
pub(crate) fn turn(pod: &Pod) -> (bool, Option<Timestamp>, String) {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (!is_admitted(pod), created, pods::name(pod).to_owned())
}

/// Reads the Node again for a pod that is not admitted yet and has a node selector or affinity, or
/// would be rejected for the last known Node: the scheduler may have seen newer labels and taints.
pub(crate) async fn look_at_node(context: &Context, pod: &Pod) {
    let known = context.node();
    let fits = known.is_some_and(|node| admission::suits(pod, &node).is_none());
    if is_admitted(pod) || fits && !admission::asks_for_labels(pod) {
        return;
    }
    read_node(context).await;
}

/// Reads the Node.
pub(crate) async fn read_node(context: &Context) {
    let api: Api<Node> = Api::all(context.parts.client.clone());
    match timeout(LOOK, api.get(&context.config.node_name)).await {
        Ok(Ok(node)) => context.see_node(&node),
        Ok(Err(error)) => warn!(error = image::chain(&error), "the node could not be read for a pod"),
        Err(error) => warn!(%error, "the node could not be read for a pod"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_runs_is_first_then_who_is_older() {
        let pod = |name: &str, created: &str, started: Option<&str>| -> Pod {
            let metadata = json!({"name": name, "creationTimestamp": created});
            serde_json::from_value(json!({"metadata": metadata, "status": {"startTime": started}})).unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let mut all = [
            pod("b", early, None),
            pod("a", late, None),
            pod("z", late, Some(late)),
            pod("a", early, None),
        ];
        all.sort_by_cached_key(turn);
        let order = all.map(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().unwrap().0;
            format!("{} {}", pods::name(&pod), created.to_string() == late)
        });
        assert_eq!(order, ["z true", "a false", "b false", "a true"]);
    }
}
