//! Inter-pod affinity and anti-affinity within a topology such as a node or a zone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use k8s_openapi::api::core::v1::{Node, PodAffinityTerm};

use super::cache::{Namespaces, far, has_terms, terms};
use super::{Misfit, Placed, SchedulerCache};
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

/// Number of pods in each topology domain: key and value.
type Domains<'a> = BTreeMap<(&'a str, &'a str), i64>;

/// Affinity of one pod to the existing pods.
pub(super) struct InterPodAffinity<'a> {
    pod: &'a Pod,
    namespaces: &'a Namespaces,
    near: Vec<Near<'a>>,
    /// True if all required affinity terms match the pod itself, which may then be the first.
    own: bool,
    far: &'a [PodAffinityTerm],
    /// Domains with pods that the pod's own anti-affinity excludes.
    shunned: Domains<'a>,
    /// Domains with pods whose anti-affinity excludes this pod.
    unwanted: Domains<'a>,
    preferred: Domains<'a>,
    /// Weights of the terms of existing pods that match this pod.
    attracted: Domains<'a>,
}

/// A required affinity term.
struct Near<'a> {
    term: &'a PodAffinityTerm,
    /// Number of pods that match all terms, for each value of this term's topology key.
    domains: BTreeMap<&'a str, i64>,
}

/// Adds to a count, and removes it if it becomes zero.
fn count<K: Ord>(counts: &mut BTreeMap<K, i64>, key: K, by: i64) {
    match counts.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(by);
        }
        Entry::Occupied(mut entry) => {
            *entry.get_mut() = entry.get().saturating_add(by);
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

impl<'a> InterPodAffinity<'a> {
    pub(super) fn of(cache: &'a SchedulerCache, pod: &'a Pod) -> Self {
        let (near, far, soft) = terms(pod);
        let namespaces = cache.namespaces();
        let terms = near.iter().map(|term| Near {
            term,
            domains: BTreeMap::new(),
        });
        let mut this = Self {
            pod,
            namespaces,
            near: terms.collect(),
            own: near.iter().all(|term| concerns(namespaces, term, pod, pod)),
            far,
            shunned: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            preferred: BTreeMap::new(),
            attracted: BTreeMap::new(),
        };
        if has_terms(pod) {
            for placed in cache.pods() {
                let Some((node, _)) = cache.at(&placed.node) else {
                    continue;
                };
                this.meet(placed, node, 1);
                for (term, sign) in &soft {
                    let own = &term.pod_affinity_term;
                    if let Some(value) = met(namespaces, own, pod, &placed.pod, node) {
                        let weight = i64::from(term.weight).saturating_mul(*sign);
                        count(&mut this.preferred, (&own.topology_key, value), weight);
                    }
                }
            }
        }
        for placed in cache.with_affinity() {
            if let Some((node, _)) = cache.at(&placed.node) {
                this.repel(placed, node, 1);
                this.attract(placed, node);
            }
        }
        this
    }

    /// Adds (`1`) or removes (`-1`) a pod, in all that decides where the pod may be.
    pub(super) fn shift(&mut self, placed: &'a Placed, node: &'a Node, sign: i64) {
        self.meet(placed, node, sign);
        self.repel(placed, node, sign);
    }

    /// Counts an existing pod in the pod's own terms.
    fn meet(&mut self, placed: &'a Placed, node: &'a Node, sign: i64) {
        let speaks = |near: &Near<'_>| concerns(self.namespaces, near.term, self.pod, &placed.pod);
        if self.near.iter().all(speaks) {
            for near in &mut self.near {
                if let Some(value) = domain(node, &near.term.topology_key) {
                    count(&mut near.domains, value, sign);
                }
            }
        }
        for term in self.far {
            if let Some(value) = met(self.namespaces, term, self.pod, &placed.pod, node) {
                count(&mut self.shunned, (&term.topology_key, value), sign);
            }
        }
    }

    /// Counts an existing pod's anti-affinity terms that match the pod.
    fn repel(&mut self, placed: &'a Placed, node: &'a Node, sign: i64) {
        for term in far(&placed.pod) {
            if let Some(value) = met(self.namespaces, term, &placed.pod, self.pod, node) {
                count(&mut self.unwanted, (&term.topology_key, value), sign);
            }
        }
    }

    /// Adds the weights of an existing pod's terms that match the pod; a required affinity has 1
    /// (`processExistingPod`, `pkg/scheduler/framework/plugins/interpodaffinity/scoring.go`).
    fn attract(&mut self, placed: &'a Placed, node: &'a Node) {
        let (near, _, soft) = terms(&placed.pod);
        let soft = soft.into_iter().map(|(term, sign)| {
            let weight = i64::from(term.weight).saturating_mul(sign);
            (&term.pod_affinity_term, weight)
        });
        for (term, weight) in near.iter().map(|term| (term, 1)).chain(soft) {
            if let Some(value) = met(self.namespaces, term, &placed.pod, self.pod, node) {
                count(&mut self.attracted, (&term.topology_key, value), weight);
            }
        }
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Misfit> {
        let first = self.own && self.near.iter().all(|near| near.domains.is_empty());
        let near = self.near.iter().all(|near| {
            domain(node, &near.term.topology_key).is_some_and(|value| first || near.domains.contains_key(value))
        });
        if !near {
            return Err(Misfit::unresolvable("node(s) didn't match pod affinity rules"));
        }
        let within = |domains: &Domains<'_>| domains.keys().any(|(key, value)| domain(node, key) == Some(value));
        if within(&self.shunned) {
            return Err(Misfit::resolvable("node(s) didn't match pod anti-affinity rules"));
        }
        if within(&self.unwanted) {
            return Err(Misfit::resolvable(
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    /// Sum of the weights of the pod's preferred terms that a node meets.
    pub(super) fn preference(&self, node: &Node) -> i64 {
        sum(&self.preferred, node)
    }

    /// Sum of the weights of the existing pods' terms that match the pod on a node.
    pub(super) fn attraction(&self, node: &Node) -> i64 {
        sum(&self.attracted, node)
    }
}

fn sum(domains: &Domains<'_>, node: &Node) -> i64 {
    let met = domains
        .iter()
        .filter(|((key, value), _)| domain(node, key) == Some(value));
    met.map(|(_, weight)| *weight).sum()
}

/// True if a placed pod may make a node feasible for this one: it has required affinity terms or
/// hard spread constraints.
pub fn follows_pods(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let mut constraints = spec
        .and_then(|spec| spec.topology_spread_constraints.as_deref())
        .into_iter()
        .flatten();
    !terms(pod).0.is_empty() || constraints.any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
}

/// The value of the term's topology key on the node of `other`, if a term of `owner` matches that
/// pod.
fn met<'a>(
    namespaces: &Namespaces,
    term: &PodAffinityTerm,
    owner: &Pod,
    other: &Pod,
    node: &'a Node,
) -> Option<&'a str> {
    domain(node, &term.topology_key).filter(|_| concerns(namespaces, term, owner, other))
}

/// True if a term of `owner` matches `other`.
fn concerns(namespaces: &Namespaces, term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let namespace = other.metadata.namespace();
    let selector = term.namespace_selector.as_ref();
    let in_scope = if selector.is_none() && listed.is_empty() {
        owner.metadata.namespace() == namespace
    } else {
        listed.iter().any(|listed| listed == namespace)
            || selector.is_some_and(|selector| matches(selector, namespaces.get(namespace)))
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
