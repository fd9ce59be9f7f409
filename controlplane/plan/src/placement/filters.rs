//! Filters that depend on a single node alone.

use api::pod::ending::may_restart_all;
pub use api::pod::taints::{tolerates, untolerated};
use k8s_openapi::api::core::v1::{Node, PodSpec, Taint, Toleration};

use super::{Misfit, Place, PodRequests, affinity, requests::conflict};
use crate::objects::name;
use crate::pod::Pod;
use crate::pod::node_of;

/// Feature of nodes that restart all containers of a pod.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";

/// Runs every filter; returns the first failure.
pub fn check(pod: &Pod, needs: &PodRequests, node: &Node, place: &Place) -> Result<(), Misfit> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(()) };
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    unschedulable(node, tolerations)?;
    if node_of(pod).is_some_and(|wanted| wanted != name(node)) {
        return Err(Misfit::unresolvable("node(s) didn't match the requested node name"));
    }
    if untolerated(node, tolerations, &["NoSchedule", "NoExecute"]).is_some() {
        return Err(Misfit::unresolvable("node(s) had untolerated taint(s)"));
    }
    if !affinity::required(spec, node) {
        return Err(Misfit::unresolvable(
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    if needs
        .ports
        .iter()
        .any(|port| place.ports.iter().any(|used| conflict(port, used)))
    {
        return Err(Misfit::resolvable(
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    resources(needs, place)?;
    features(spec, node)
}

fn unschedulable(node: &Node, tolerations: &[Toleration]) -> Result<(), Misfit> {
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true) {
        return Ok(());
    }
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if !tolerations.iter().any(|toleration| tolerates(toleration, &taint)) {
        return Err(Misfit::unresolvable("node(s) were unschedulable"));
    }
    Ok(())
}

/// Checks the features that the node must declare (`NodeDeclaredFeatures`,
/// `pkg/scheduler/framework/plugins/nodedeclaredfeatures`).
fn features(spec: &PodSpec, node: &Node) -> Result<(), Misfit> {
    let declared = node
        .status
        .as_ref()
        .and_then(|status| status.declared_features.as_ref());
    let mut declared = declared.into_iter().flatten();
    if may_restart_all(spec) && !declared.any(|feature| feature == RESTART_ALL) {
        return Err(Misfit::unresolvable("node(s) didn't match Pod's required features"));
    }
    Ok(())
}

fn resources(needs: &PodRequests, place: &Place) -> Result<(), Misfit> {
    let mut misfit = Misfit {
        reasons: Vec::new(),
        resolvable: true,
    };
    let limit = place.allocatable.get("pods");
    if place.pods.saturating_add(1) > limit {
        misfit.reasons.push("Too many pods".to_owned());
        misfit.resolvable = limit > 0;
    }
    for (resource, wanted) in needs.requests.iter() {
        let allocatable = place.allocatable.get(resource);
        let used = place.requested.get(resource);
        if wanted > allocatable.saturating_sub(used) {
            misfit.reasons.push(format!("Insufficient {resource}"));
            misfit.resolvable &= wanted <= allocatable;
        }
    }
    if misfit.reasons.is_empty() { Ok(()) } else { Err(misfit) }
}
