//! What the scheduler knows of nodes and of the pods on them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Node;

use super::{
    Claims, Displacement, Misfit, Needs, Preemption, Score, Unplaceable, filters,
    needs::{HostPort, amount},
    neighbours::{self, Neighbourhood},
    priority, score,
    spread::Spread,
};
use crate::objects::{controller_of, name, uid};
use crate::pod::Pod;

/// A pod on a node, or about to be.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The node's name.
    pub node: String,
    /// The pod.
    pub pod: Arc<Pod>,
    /// What it takes.
    pub needs: Needs,
    /// Whether the server has not yet shown it there.
    pub assumed: bool,
}

/// One node and the sum of what its pods take.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The node; absent when pods name one that is not there.
    pub node: Option<Arc<Node>>,
    /// Allocatable, counted as in [`Needs::requests`].
    pub allocatable: BTreeMap<String, i64>,
    /// The sum of its pods' requests.
    pub requested: BTreeMap<String, i64>,
    /// Thousandths of a cpu that scoring counts.
    pub scored_cpu: i64,
    /// Bytes that scoring counts.
    pub scored_memory: i64,
    /// Ports in use.
    pub ports: Vec<HostPort>,
    /// Number of its pods.
    pub pods: i64,
    /// Number of its pods by the uid of their controller.
    pub siblings: BTreeMap<String, i64>,
}

/// A pod that others make room for.
#[derive(Debug)]
struct Promise {
    placed: Placed,
    /// The uids of those who go.
    victims: Vec<String>,
}

/// All nodes and all pods on them.
#[derive(Debug, Default)]
pub struct Board {
    places: BTreeMap<String, Place>,
    pods: BTreeMap<String, Placed>,
    repelling: BTreeSet<String>,
    promises: BTreeMap<String, Promise>,
    /// How many pods are placed of each priority.
    ranks: BTreeMap<i32, usize>,
}

/// What all nodes are judged by.
struct Judge<'a> {
    pod: &'a Pod,
    needs: &'a Needs,
    claims: &'a Claims,
    exclusive: Result<(), Misfit>,
    neighbourhood: Neighbourhood<'a>,
    spread: Spread<'a>,
}

impl<'a> Judge<'a> {
    fn new(board: &'a Board, pod: &'a Pod, needs: &'a Needs, claims: &'a Claims) -> Self {
        Self {
            pod,
            needs,
            claims,
            exclusive: claims.check_exclusive(board, pod),
            neighbourhood: Neighbourhood::of(board, pod),
            spread: Spread::of(board, pod),
        }
    }

    fn check(&self, node: &Node, place: &Place) -> Result<(), Misfit> {
        filters::check(self.pod, self.needs, node, place)
            .and_then(|()| self.exclusive.clone())
            .and_then(|()| self.claims.check(node))
            .and_then(|()| self.spread.check(node))
            .and_then(|()| self.neighbourhood.check(node))
    }
}

impl Board {
    /// Takes a node as it is now.
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

    /// Forgets a node; pods that name it stay counted until they go.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(place) = self.places.get_mut(name) {
            place.node = None;
            if place.pods == 0 {
                self.places.remove(name);
            }
        }
    }

    /// Puts a pod on a node, in place of what was known of it.
    pub fn place(&mut self, pod: &Arc<Pod>, node: &str, assumed: bool) {
        self.lift(uid(&**pod));
        let placed = Placed {
            node: node.to_owned(),
            pod: pod.clone(),
            needs: Needs::of(pod),
            assumed,
        };
        let place = self.places.entry(node.to_owned()).or_default();
        place.count(&placed, 1);
        place.ports.extend(placed.needs.ports.iter().cloned());
        if neighbours::repels(pod) {
            self.repelling.insert(uid(&**pod).to_owned());
        }
        *self.ranks.entry(priority(pod)).or_default() += 1;
        self.pods.insert(uid(&**pod).to_owned(), placed);
    }

    /// Takes a newer version of a pod that asks for the same.
    pub fn renew(&mut self, pod: &Arc<Pod>) {
        if let Some(placed) = self.pods.get_mut(uid(&**pod)) {
            placed.pod = Arc::clone(pod);
        }
    }

    /// Takes a pod off its node, or what it was promised from it; whether others may have that room now.
    pub fn lift(&mut self, uid: &str) -> bool {
        let promised = self.promises.remove(uid).is_some();
        let Some(placed) = self.pods.remove(uid) else {
            return promised;
        };
        self.repelling.remove(uid);
        let rank = priority(&placed.pod);
        match self.ranks.get_mut(&rank) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => {
                self.ranks.remove(&rank);
            }
        }
        if let Some(place) = self.places.get_mut(&placed.node) {
            place.count(&placed, -1);
            for port in &placed.needs.ports {
                if let Some(index) = place.ports.iter().position(|used| used == port) {
                    place.ports.swap_remove(index);
                }
            }
            if place.node.is_none() && place.pods == 0 {
                self.places.remove(&placed.node);
            }
        }
        true
    }

    /// Promises a pod the room that others leave: until it has it, it is denied to those who are no more important. Whoever
    /// is less important and was promised the same node is promised nothing any more.
    pub fn promise(&mut self, pod: &Arc<Pod>, displacement: &Displacement) {
        let node = &displacement.node;
        let least = priority(pod);
        self.promises
            .retain(|_, other| other.placed.node != *node || priority(&other.placed.pod) >= least);
        let placed = Placed {
            node: node.clone(),
            pod: pod.clone(),
            needs: Needs::of(pod),
            assumed: true,
        };
        let victims = displacement.victims.iter().map(|victim| uid(&**victim).to_owned());
        let victims = victims.collect();
        self.promises
            .insert(uid(&**pod).to_owned(), Promise { placed, victims });
    }

    /// The node that a pod is promised room on.
    pub fn promised_node(&self, uid: &str) -> Option<&str> {
        Some(&self.promises.get(uid)?.placed.node)
    }

    /// Takes a promise back.
    pub fn disappoint(&mut self, uid: &str) {
        self.promises.remove(uid);
    }

    /// Whether some who make room for a pod are not gone yet, on a node that would still do for it.
    pub fn awaits(&self, pod: &Pod, claims: &Claims) -> bool {
        let Some(promise) = self.promises.get(uid(pod)) else {
            return false;
        };
        let goes = promise.victims.iter().any(|victim| self.pods.contains_key(victim));
        let place = self.places.get(&promise.placed.node);
        let own = place.and_then(|place| Some((place.node.as_ref()?, place)));
        goes && own.is_some_and(|(own, place)| {
            let judge = Judge::new(self, pod, &promise.placed.needs, claims);
            judge.check(own, place).err().is_none_or(|misfit| misfit.resolvable)
        })
    }

    /// A place as it will be for a pod once those have come to whom it was promised before.
    fn promised<'a>(&self, pod: &Pod, node: &str, place: &'a Place) -> Cow<'a, Place> {
        let mut place = Cow::Borrowed(place);
        for promise in self.promises.values().map(|promise| &promise.placed) {
            let before = priority(&promise.pod) >= priority(pod) && uid(&*promise.pod) != uid(pod);
            if before && promise.node == node {
                let place = place.to_mut();
                place.count(promise, 1);
                place.ports.extend(promise.needs.ports.iter().cloned());
            }
        }
        place
    }

    /// Whether the node will do for the pod.
    pub(super) fn admits(&self, pod: &Pod, needs: &Needs, claims: &Claims, node: &str) -> bool {
        let found = self
            .places
            .get(node)
            .and_then(|place| Some((place.node.as_ref()?, place)));
        found.is_some_and(|(own, place)| {
            let judge = Judge::new(self, pod, needs, claims);
            judge.check(own, &self.promised(pod, node, place)).is_ok()
        })
    }

    /// Whether any pod that is placed is less important.
    pub(super) fn outranks(&self, pod: &Pod) -> bool {
        self.ranks.keys().next().is_some_and(|least| *least < priority(pod))
    }

    /// Where a pod is, if it is known to be anywhere.
    pub fn find(&self, uid: &str) -> Option<&Placed> {
        self.pods.get(uid)
    }

    /// The nodes that are there.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<Node>, &Place)> {
        self.places
            .values()
            .filter_map(|place| place.node.as_ref().map(|node| (node, place)))
    }

    /// The pods that are placed.
    pub fn pods(&self) -> impl Iterator<Item = &Placed> {
        self.pods.values()
    }

    /// The pods that do not want others near.
    pub(super) fn repelling(&self) -> impl Iterator<Item = &Placed> {
        self.repelling.iter().filter_map(|uid| self.pods.get(uid))
    }

    /// The best node for a pod with these claims, or why there is none.
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
        let needs = Needs::of(pod);
        let judge = Judge::new(self, pod, &needs, claims);
        let mut misfits: Vec<Misfit> = Vec::new();
        let mut best: Option<(Score<'_>, &Arc<Node>)> = None;
        for (node, place) in self.nodes() {
            match judge.check(node, &self.promised(pod, name(&**node), place)) {
                Ok(()) => {
                    let score = score::of(pod, &needs, node, place, &judge.neighbourhood, &judge.spread);
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
    fn count(&mut self, placed: &Placed, sign: i64) {
        for (resource, amount) in &placed.needs.requests {
            let sum = self.requested.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(sign));
        }
        self.requested.retain(|_, sum| *sum != 0);
        self.scored_cpu = self
            .scored_cpu
            .saturating_add(placed.needs.scored_cpu.saturating_mul(sign));
        self.scored_memory = self
            .scored_memory
            .saturating_add(placed.needs.scored_memory.saturating_mul(sign));
        self.pods = self.pods.saturating_add(sign);
        if let Some(owner) = controller_of(&placed.pod.metadata) {
            let count = self.siblings.entry(owner.uid.clone()).or_default();
            *count = count.saturating_add(sign);
        }
        self.siblings.retain(|_, count| *count != 0);
    }
}
