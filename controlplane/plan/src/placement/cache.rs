//! The scheduler's cache: nodes and the pods on them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Node;

use super::{
    Claims, Displacement, Misfit, PodRequests, Preemption, Score, Unplaceable,
    claims::Exclusive,
    filters,
    inter_pod_affinity::{self, InterPodAffinity, Namespaces},
    priority,
    requests::{HostPort, amount},
    score,
    spread::Spread,
};
use crate::objects::{Map, Meta as _, controller_of, name, uid};
use crate::pod::Pod;

/// A pod that is bound to a node, or assumed to be.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The node's name.
    pub node: String,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its resource requests.
    pub needs: PodRequests,
    /// True until the server shows the pod on the node.
    pub assumed: bool,
}

/// A node and the sum of its pods' requests.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The node; absent when pods are bound to one that does not exist.
    pub node: Option<Arc<Node>>,
    /// Allocatable, counted as in [`PodRequests::requests`].
    pub allocatable: BTreeMap<String, i64>,
    /// The sum of its pods' requests.
    pub requested: BTreeMap<String, i64>,
    /// Milli-CPUs for scoring.
    pub scored_cpu: i64,
    /// Bytes for scoring.
    pub scored_memory: i64,
    /// Ports in use.
    pub ports: Vec<HostPort>,
    /// Number of its pods.
    pub pods: i64,
    /// Number of its pods by the uid of their controller.
    pub siblings: BTreeMap<String, i64>,
    /// Pods and requests by priority.
    ranks: BTreeMap<i32, Rank>,
}

/// The pods of one priority on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rank {
    pods: i64,
    requested: BTreeMap<String, i64>,
}

/// A nominated pod: others are preempted to make room for it.
#[derive(Debug)]
struct Promise {
    placed: Placed,
    /// Uids of the victims; empty for a nomination that was read from the status, where only their
    /// deletion is visible.
    victims: Vec<String>,
}

/// All nodes and all pods on them.
#[derive(Debug, Default)]
pub struct SchedulerCache {
    places: BTreeMap<String, Place>,
    namespaces: Namespaces,
    pods: BTreeMap<String, Placed>,
    with_affinity: BTreeSet<String>,
    promises: BTreeMap<String, Promise>,
}

/// Inputs of the filters and scores for one pod.
pub(super) struct Judge<'a> {
    pod: &'a Pod,
    needs: &'a PodRequests,
    claims: &'a Claims,
    exclusive: Exclusive<'a>,
    inter_pod_affinity: InterPodAffinity<'a>,
    spread: Spread<'a>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(cache: &'a SchedulerCache, pod: &'a Pod, needs: &'a PodRequests, claims: &'a Claims) -> Self {
        Self {
            pod,
            needs,
            claims,
            exclusive: Exclusive::of(cache, pod, claims),
            inter_pod_affinity: InterPodAffinity::of(cache, pod),
            spread: Spread::of(cache, pod),
        }
    }

    pub(super) fn check(&self, node: &Node, place: &Place) -> Result<(), Misfit> {
        filters::check(self.pod, self.needs, node, place)
            .and_then(|()| self.exclusive.check())
            .and_then(|()| self.claims.check(node))
            .and_then(|()| self.spread.check(node))
            .and_then(|()| self.inter_pod_affinity.check(node))
    }

    /// Removes a pod from its node in this calculation (`-1`), or puts it back (`1`).
    pub(super) fn shift(&mut self, placed: &'a Placed, node: &'a Node, sign: i64) {
        self.exclusive.shift(placed, sign);
        self.spread.shift(placed, sign);
        self.inter_pod_affinity.shift(placed, node, sign);
    }
}

impl SchedulerCache {
    /// Adds or updates a node.
    pub fn set_node(&mut self, node: &Arc<Node>) {
        let place = self.places.entry(name(&**node).to_owned()).or_default();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        place.allocatable = allocatable
            .into_iter()
            .flatten()
            .map(|(resource, quantity)| (resource.clone(), amount(resource, Quantity::of(quantity))))
            .collect();
        place.node = Some(node.clone());
    }

    /// Removes a node; pods that are bound to it stay counted until they are deleted.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(place) = self.places.get_mut(name) {
            place.node = None;
            if place.pods == 0 {
                self.places.remove(name);
            }
        }
    }

    /// Sets the labels of a namespace.
    pub fn set_namespace(&mut self, name: &str, labels: Option<&Map>) {
        let labels = labels.cloned().unwrap_or_default();
        self.namespaces.insert(name.to_owned(), labels);
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    pub(super) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Puts a pod on a node, replacing its earlier placement.
    pub fn place(&mut self, pod: &Arc<Pod>, node: &str, assumed: bool) {
        self.lift(uid(&**pod));
        let placed = Placed {
            node: node.to_owned(),
            pod: pod.clone(),
            needs: PodRequests::of(pod),
            assumed,
        };
        self.places.entry(node.to_owned()).or_default().shift(&placed, 1);
        if inter_pod_affinity::has_terms(pod) {
            self.with_affinity.insert(uid(&**pod).to_owned());
        }
        self.pods.insert(uid(&**pod).to_owned(), placed);
    }

    /// Replaces a pod by a newer version with the same requests.
    pub fn renew(&mut self, pod: &Arc<Pod>) {
        if let Some(placed) = self.pods.get_mut(uid(&**pod)) {
            placed.pod = Arc::clone(pod);
        }
    }

    /// Removes a pod from its node, or its nomination; returns true if other pods may have that
    /// room now.
    pub fn lift(&mut self, uid: &str) -> bool {
        let promised = self.promises.remove(uid).is_some();
        let Some(placed) = self.pods.remove(uid) else {
            return promised;
        };
        self.with_affinity.remove(uid);
        if let Some(place) = self.places.get_mut(&placed.node) {
            place.shift(&placed, -1);
            if place.node.is_none() && place.pods == 0 {
                self.places.remove(&placed.node);
            }
        }
        true
    }

    /// Nominates a node for a pod. Until the pod is bound, its room is denied to pods of the same
    /// or a lower priority. Nominations of pods of lower priority for the same node are dropped.
    pub fn promise(&mut self, pod: &Arc<Pod>, displacement: &Displacement) {
        let node = &displacement.node;
        let least = priority(pod);
        self.promises
            .retain(|_, other| other.placed.node != *node || priority(&other.placed.pod) >= least);
        let victims = displacement.victims.iter().map(|victim| uid(&**victim).to_owned());
        self.keep(pod, node, victims.collect());
    }

    /// Takes over an earlier nomination from the pod's status.
    pub fn remember(&mut self, pod: &Arc<Pod>, node: &str) {
        self.keep(pod, node, Vec::new());
    }

    fn keep(&mut self, pod: &Arc<Pod>, node: &str, victims: Vec<String>) {
        let placed = Placed {
            node: node.to_owned(),
            pod: pod.clone(),
            needs: PodRequests::of(pod),
            assumed: true,
        };
        self.promises
            .insert(uid(&**pod).to_owned(), Promise { placed, victims });
    }

    /// The node that is nominated for a pod.
    pub fn promised_node(&self, uid: &str) -> Option<&str> {
        Some(&self.promises.get(uid)?.placed.node)
    }

    /// Drops a nomination.
    pub fn disappoint(&mut self, uid: &str) {
        self.promises.remove(uid);
    }

    /// True if victims of a nominated pod still exist on a node that would still fit it.
    pub fn awaits(&self, pod: &Pod, claims: &Claims) -> bool {
        let Some(promise) = self.promises.get(uid(pod)) else {
            return false;
        };
        let least = priority(pod);
        let goes = if promise.victims.is_empty() {
            let on_it = |placed: &&Placed| placed.node == promise.placed.node && priority(&placed.pod) < least;
            let mut on_it = self.pods.values().filter(on_it);
            on_it.any(|placed| placed.pod.metadata.is_deleting())
        } else {
            promise.victims.iter().any(|victim| self.pods.contains_key(victim))
        };
        goes && self.at(&promise.placed.node).is_some_and(|(own, place)| {
            let judge = Judge::new(self, pod, &promise.placed.needs, claims);
            judge.check(own, place).err().is_none_or(|misfit| misfit.resolvable)
        })
    }

    /// A node's state for a pod, with the pods added that were nominated before it.
    pub(super) fn promised<'a>(&self, pod: &Pod, node: &str, place: &'a Place) -> Cow<'a, Place> {
        let mut place = Cow::Borrowed(place);
        for promise in self.promises.values().map(|promise| &promise.placed) {
            let before = priority(&promise.pod) >= priority(pod) && uid(&*promise.pod) != uid(pod);
            if before && promise.node == node {
                place.to_mut().shift(promise, 1);
            }
        }
        place
    }

    /// The node of a pod, if it has one.
    pub fn find(&self, uid: &str) -> Option<&Placed> {
        self.pods.get(uid)
    }

    /// All existing nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<Node>, &Place)> {
        self.places
            .values()
            .filter_map(|place| place.node.as_ref().map(|node| (node, place)))
    }

    /// An existing node with its state.
    pub(super) fn at(&self, name: &str) -> Option<(&Node, &Place)> {
        let place = self.places.get(name)?;
        Some((place.node.as_ref()?, place))
    }

    /// All pods that are placed on nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Placed> {
        self.pods.values()
    }

    /// Pods with affinity or anti-affinity terms.
    pub(super) fn with_affinity(&self) -> impl Iterator<Item = &Placed> {
        self.with_affinity.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// Returns the best node for a pod with these claims, or the reasons why it is unschedulable.
    pub fn choose(&self, pod: &Pod, claims: &Claims) -> Result<Arc<Node>, Unplaceable> {
        let never = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never");
        let preemption = if never { Preemption::Never } else { Preemption::Vain };
        if let Err(reason) = claims.check_pod(pod) {
            return Err(Unplaceable {
                misfits: self.nodes().map(|_| Misfit::unresolvable(reason.clone())).collect(),
                of_pod: Some(reason),
                preemption,
            });
        }
        let needs = PodRequests::of(pod);
        let judge = Judge::new(self, pod, &needs, claims);
        let mut misfits: Vec<Misfit> = Vec::new();
        let mut best: Option<(Score<'_>, &Arc<Node>)> = None;
        for (node, place) in self.nodes() {
            match judge.check(node, &self.promised(pod, name(&**node), place)) {
                Ok(()) => {
                    let score = score::of(pod, &needs, node, place, &judge.inter_pod_affinity, &judge.spread);
                    if best.as_ref().is_none_or(|(best, _)| score < *best) {
                        best = Some((score, node));
                    }
                }
                Err(misfit) => misfits.push(misfit),
            }
        }
        best.map(|(_, node)| Arc::clone(node)).ok_or(Unplaceable {
            misfits,
            of_pod: None,
            preemption,
        })
    }
}

impl Place {
    /// Adds (`1`) or removes (`-1`) a pod.
    fn shift(&mut self, placed: &Placed, sign: i64) {
        self.take(placed, sign);
        self.scored_cpu = self
            .scored_cpu
            .saturating_add(placed.needs.scored_cpu.saturating_mul(sign));
        self.scored_memory = self
            .scored_memory
            .saturating_add(placed.needs.scored_memory.saturating_mul(sign));
        if let Some(owner) = controller_of(&placed.pod.metadata) {
            let count = self.siblings.entry(owner.uid.clone()).or_default();
            *count = count.saturating_add(sign);
        }
        self.siblings.retain(|_, count| *count != 0);
        let rank = self.ranks.entry(priority(&placed.pod)).or_default();
        rank.pods = rank.pods.saturating_add(sign);
        add(&mut rank.requested, &placed.needs.requests, sign);
        self.ranks.retain(|_, rank| rank.pods != 0);
    }

    /// Updates only the fields that filters read.
    pub(super) fn take(&mut self, placed: &Placed, sign: i64) {
        add(&mut self.requested, &placed.needs.requests, sign);
        self.pods = self.pods.saturating_add(sign);
        if sign > 0 {
            self.ports.extend(placed.needs.ports.iter().cloned());
            return;
        }
        for port in &placed.needs.ports {
            if let Some(index) = self.ports.iter().position(|used| used == port) {
                self.ports.swap_remove(index);
            }
        }
    }

    /// True if there are pods of lower priority and the requests would fit without them.
    pub(super) fn suffices_without(&self, least: i32, needs: &PodRequests) -> bool {
        let below = || self.ranks.range(..least).map(|(_, rank)| rank);
        let of = |amounts: &BTreeMap<String, i64>, resource: &str| amounts.get(resource).copied().unwrap_or(0);
        let pods = below().fold(self.pods, |left, rank| left.saturating_sub(rank.pods));
        pods < self.pods
            && pods < of(&self.allocatable, "pods")
            && needs.requests.iter().all(|(resource, wanted)| {
                let used = below().fold(of(&self.requested, resource), |left, rank| {
                    left.saturating_sub(of(&rank.requested, resource))
                });
                *wanted <= of(&self.allocatable, resource).saturating_sub(used)
            })
    }
}

/// Adds amounts to sums, or subtracts them; sums of zero are removed.
fn add(sums: &mut BTreeMap<String, i64>, amounts: &BTreeMap<String, i64>, sign: i64) {
    for (resource, amount) in amounts {
        let amount = amount.saturating_mul(sign);
        match sums.get_mut(resource) {
            Some(sum) => *sum = sum.saturating_add(amount),
            None => {
                sums.insert(resource.clone(), amount);
            }
        }
    }
    sums.retain(|_, sum| *sum != 0);
}
