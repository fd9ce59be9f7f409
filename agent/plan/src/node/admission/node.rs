//! Match of a pod with the node's labels and taints.

use api::pod::affinity;
use api::pod::taints::untolerated;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use super::rejection;
use crate::pod::termination::Rejection;

/// Returns the rejection of a pod that the Node's labels or taints do not admit.
pub fn suits(pod: &Pod, node: &Node) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    labels(spec, node).or_else(|| taints(pod, node))
}

/// True if the pod has a node selector or a required node affinity.
pub fn asks_for_labels(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.is_some_and(|own| own.required_during_scheduling_ignored_during_execution.is_some());
    required || spec.is_some_and(|spec| spec.node_selector.as_ref().is_some_and(|labels| !labels.is_empty()))
}

pub(super) fn labels(spec: &PodSpec, node: &Node) -> Option<Rejection> {
    let what = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    (!affinity::required(spec, node)).then(|| rejection("NodeAffinity", what))
}

/// Rejects pods that do not tolerate a `NoExecute` taint, and would be evicted.
pub(super) fn taints(pod: &Pod, node: &Node) -> Option<Rejection> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let what = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let found = untolerated(node, tolerations.unwrap_or_default(), &["NoExecute"]);
    found.map(|_| rejection("TaintToleration", what))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::{Host, check};
    use super::*;

    #[test]
    fn a_pod_that_is_not_for_this_node_is_refused() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": {"taints": [
                {"key": "a", "effect": "NoExecute", "value": "1"},
                {"key": "b", "effect": "NoSchedule"},
            ]},
        });
        let host = Host {
            node: Some(Arc::new(serde_json::from_value(node).unwrap())),
            pods: 1,
            ..Host::default()
        };
        let tolerations = json!([{"key": "a", "operator": "Exists"}]);
        let of = |selector: serde_json::Value, affinity: serde_json::Value, tolerations: &serde_json::Value| {
            let spec = json!({
                "containers": [], "nodeSelector": selector, "tolerations": tolerations,
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
            });
            let pod = Pod {
                spec: Some(serde_json::from_value(spec).unwrap()),
                ..Pod::default()
            };
            let found = check(&pod, &host).err();
            let said = found.map_or_else(String::new, |found| format!("{}: {}", found.reason, found.message));
            (asks_for_labels(&pod), said)
        };
        let by_name = |name: &str| {
            let term = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            json!({"nodeSelectorTerms": [{"matchFields": [term]}]})
        };
        let other = "NodeAffinity: Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node \
                     affinity/selector";
        let nothing = json!(null);
        assert_eq!(
            of(json!({"disk": "ssd"}), by_name("n"), &tolerations),
            (true, String::new())
        );
        assert_eq!(
            of(json!({"disk": "hdd"}), nothing.clone(), &tolerations),
            (true, other.to_owned())
        );
        assert_eq!(of(json!({}), by_name("m"), &tolerations), (true, other.to_owned()));
        assert_eq!(
            of(json!({}), nothing.clone(), &nothing),
            (
                false,
                "TaintToleration: Pod was rejected: Predicate TaintToleration failed: node(s) had taints that the pod \
                 didn't tolerate"
                    .to_owned()
            )
        );
    }
}
