//! Filters that depend on a single node alone.

use api::pod::ending::may_restart_all;
pub use api::pod::taints::{tolerates, untolerated};
use k8s_openapi::api::core::v1::{Affinity, Node, NodeAffinity, PodSpec, Taint, Toleration};

use super::requests::conflict;
use super::{Misfit, Place, PodRequests, affinity};
use crate::objects::name;
use crate::pod::Pod;
use crate::pod::node_of;

/// Feature of nodes that restart all containers of a pod.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";

/// Constraints of a pod that depend on the node alone. Pods of one template share a class, and so a node's verdict.
#[derive(Debug, Default)]
pub struct Class {
    number: u64,
    spec: PodSpec,
}

impl Class {
    /// The number of the pod's class; it is a new one if the last pod had another.
    pub(super) fn number(&mut self, pod: &Pod) -> u64 {
        let Some(spec) = pod.spec.as_ref() else {
            return self.number;
        };
        let known = &self.spec;
        let is_same = self.number > 0
            && known.node_name == spec.node_name
            && known.node_selector == spec.node_selector
            && known.tolerations == spec.tolerations
            && node_affinity(known) == node_affinity(spec);
        if !is_same {
            self.number = self.number.saturating_add(1);
            self.spec = PodSpec {
                node_name: spec.node_name.clone(),
                node_selector: spec.node_selector.clone(),
                tolerations: spec.tolerations.clone(),
                affinity: node_affinity(spec).map(|affinity| Affinity {
                    node_affinity: Some(affinity.clone()),
                    ..Affinity::default()
                }),
                ..PodSpec::default()
            };
        }
        self.number
    }
}

fn node_affinity(spec: &PodSpec) -> Option<&NodeAffinity> {
    spec.affinity.as_ref()?.node_affinity.as_ref()
}

/// Result of the filters and scores that depend on the node alone, for a class of pods that passes them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verdict {
    class: u64,
    /// `PreferNoSchedule` taints that they do not tolerate.
    pub(super) soft_taints: usize,
    /// Sum of the weights of the preferred terms of their node affinity that it matches.
    pub(super) preference: i64,
}

/// The node's verdict for a pod of this class: all filters that no other pod changes.
pub(super) fn verdict(class: u64, pod: &Pod, node: &Node, place: &Place) -> Result<Verdict, Misfit> {
    let known = place.verdict.get().filter(|known| known.class == class);
    match (known, &pod.spec) {
        (Some(known), _) => Ok(known),
        (None, None) => Ok(Verdict::default()),
        (None, Some(spec)) => {
            let verdict = judge(class, pod, spec, node)?;
            place.verdict.set(Some(verdict));
            Ok(verdict)
        }
    }
}

fn judge(class: u64, pod: &Pod, spec: &PodSpec, node: &Node) -> Result<Verdict, Misfit> {
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
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let soft = taints.filter(|taint| {
        taint.effect == "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    });
    Ok(Verdict {
        class,
        soft_taints: soft.count(),
        preference: affinity::preference(spec, node),
    })
}

/// Runs the filters that the pods on the node change; returns the first failure.
pub(super) fn check(pod: &Pod, needs: &PodRequests, node: &Node, place: &Place) -> Result<(), Misfit> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(()) };
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
    let mut declared = node
        .status
        .iter()
        .flat_map(|status| status.declared_features.iter().flatten());
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
