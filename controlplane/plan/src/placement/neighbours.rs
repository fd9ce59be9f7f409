//! Which pods a pod wants near, and which it wants far, within a topology such as a node or a zone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, PodAffinityTerm, WeightedPodAffinityTerm};

use super::{Board, Misfit};
use crate::objects::{Map, Meta as _, matches, name};
use crate::pod::Pod;

/// A topology's value for a node, such as its zone.
pub(super) fn domain<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let label = node
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(key))
        .map(String::as_str);
    // A node without its own hostname label is still its own host.
    label.or_else(|| (key == "kubernetes.io/hostname").then(|| name(node)))
}

type Domains<'a> = BTreeSet<(&'a str, &'a str)>;

/// What the pods that are there mean for one pod.
pub(super) struct Neighbourhood<'a> {
    /// Each required term: its key and where a pod meets it; `true` where the pod may be the first.
    near: Vec<(&'a str, BTreeSet<&'a str>, bool)>,
    far: Domains<'a>,
    /// Where a pod that is there does not want this one.
    unwanted: Domains<'a>,
    preferred: BTreeMap<(&'a str, &'a str), i64>,
    unsupported: bool,
}

impl<'a> Neighbourhood<'a> {
    pub(super) fn of(board: &'a Board, pod: &'a Pod) -> Self {
        let (near, far, soft) = terms(pod);
        let mut this = Self {
            near: Vec::new(),
            far: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            preferred: BTreeMap::new(),
            unsupported: near.iter().chain(far).any(selects_namespaces),
        };
        let nodes: BTreeMap<&str, &Node> = board.nodes().map(|(node, _)| (name(&**node), &**node)).collect();
        let found = |term: &'a PodAffinityTerm| -> Vec<&'a str> {
            let pods = board.pods().filter(|placed| concerns(term, pod, &placed.pod));
            pods.filter_map(|placed| domain(nodes.get(placed.node.as_str())?, &term.topology_key))
                .collect()
        };
        for term in near {
            let domains: BTreeSet<&str> = found(term).into_iter().collect();
            let first = domains.is_empty() && concerns(term, pod, pod);
            this.near.push((&term.topology_key, domains, first));
        }
        for term in far {
            this.far
                .extend(found(term).into_iter().map(|value| (term.topology_key.as_str(), value)));
        }
        for (term, sign) in soft {
            let weight = i64::from(term.weight).saturating_mul(sign);
            for value in found(&term.pod_affinity_term) {
                *this
                    .preferred
                    .entry((&term.pod_affinity_term.topology_key, value))
                    .or_default() += weight;
            }
        }
        for placed in board.repelling() {
            let (_, theirs, _) = terms(&placed.pod);
            for term in theirs.iter().filter(|term| concerns(term, &placed.pod, pod)) {
                let value = nodes
                    .get(placed.node.as_str())
                    .and_then(|node| domain(node, &term.topology_key));
                this.unwanted
                    .extend(value.map(|value| (term.topology_key.as_str(), value)));
            }
        }
        this
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Misfit> {
        if self.unsupported {
            let reason = "node(s) could not be judged: namespaceSelector in pod affinity is not supported";
            return Err(Misfit::unresolvable(reason));
        }
        let near = self
            .near
            .iter()
            .all(|(key, domains, first)| domain(node, key).is_some_and(|value| *first || domains.contains(value)));
        if !near {
            return Err(Misfit::unresolvable("node(s) didn't match pod affinity rules"));
        }
        let within = |domains: &Domains<'_>| domains.iter().any(|(key, value)| domain(node, key) == Some(value));
        if within(&self.far) {
            return Err(Misfit::resolvable("node(s) didn't match pod anti-affinity rules"));
        }
        if within(&self.unwanted) {
            return Err(Misfit::resolvable(
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    pub(super) fn preference(&self, node: &Node) -> i64 {
        let met = self
            .preferred
            .iter()
            .filter(|((key, value), _)| domain(node, key) == Some(value));
        met.map(|(_, weight)| *weight).sum()
    }
}

type Terms<'a> = (
    &'a [PodAffinityTerm],
    &'a [PodAffinityTerm],
    Vec<(&'a WeightedPodAffinityTerm, i64)>,
);

/// Required near, required far, and preferred ones with their sign.
fn terms(pod: &Pod) -> Terms<'_> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let far = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let soft_near = near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_deref());
    let soft_far = far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_deref());
    let soft = soft_near.into_iter().flatten().map(|term| (term, 1));
    (
        near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default(),
        far.and_then(|far| far.required_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default(),
        soft.chain(soft_far.into_iter().flatten().map(|term| (term, -1)))
            .collect(),
    )
}

/// Whether the term picks namespaces by their labels.
fn selects_namespaces(term: &PodAffinityTerm) -> bool {
    term.namespace_selector.as_ref().is_some_and(|selector| {
        selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty())
            || selector
                .match_expressions
                .as_ref()
                .is_some_and(|expressions| !expressions.is_empty())
    })
}

/// Whether pods like it are kept away from it.
pub(super) fn repels(pod: &Pod) -> bool {
    !terms(pod).1.is_empty()
}

/// Whether a term of `owner` speaks of `other`.
fn concerns(term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let namespace = other.metadata.namespace();
    let in_scope = if term.namespace_selector.is_some() {
        // An empty selector means all namespaces. Their labels are not on the board, so for a required term any other
        // selector is refused above; here it widens what pods that are there keep away.
        true
    } else if listed.is_empty() {
        owner.metadata.namespace() == other.metadata.namespace()
    } else {
        listed.iter().any(|listed| listed == namespace)
    };
    let labels: Option<&Map> = other.metadata.labels();
    let own = owner.metadata.labels();
    let keys = |keys: &Option<Vec<String>>, equal: bool| {
        keys.iter().flatten().all(|key| {
            let ours = own.and_then(|own| own.get(key));
            ours.is_none() || (ours == labels.and_then(|labels| labels.get(key))) == equal
        })
    };
    in_scope
        && term
            .label_selector
            .as_ref()
            .is_some_and(|selector| matches(selector, labels))
        && keys(&term.match_label_keys, true)
        && keys(&term.mismatch_label_keys, false)
}
