//! `PodTopologyLabels`: copies the region and zone labels of a pod's node to the pod, unless it has
//! its own.

use std::collections::BTreeMap;

use api::Object;
use k8s_openapi::api::core::v1::Pod;
use store::Key;

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::admission::Review;

const LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// Labels a new pod that comes with a node.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(in crate::write::admission) fn label(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>()
        && let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
    {
        let found = of_node(review.context, node);
        add(&mut pod.metadata.labels, found);
    }
    Ok(())
}

/// Topology labels that a pod gets from its node; empty when the node does not exist.
pub(crate) fn of_node(context: &Context, node: &str) -> Vec<(String, String)> {
    let Ok(key) = Key::new("", "nodes", "", node) else {
        return Vec::new();
    };
    let Some(entry) = context.store().get(&key) else {
        return Vec::new();
    };
    let labels = &entry.attributes.labels;
    let found = LABELS.into_iter().filter_map(|name| labels.get_key_value(name));
    found.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Adds labels; those that are there stay as they are.
pub(crate) fn add(labels: &mut Option<BTreeMap<String, String>>, more: impl IntoIterator<Item = (String, String)>) {
    for (name, value) in more {
        labels.get_or_insert_default().entry(name).or_insert(value);
    }
}
