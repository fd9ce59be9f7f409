//! The scheduler's cache: nodes and the pods on them.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{ContainerImage, Node, PodAffinityTerm, WeightedPodAffinityTerm};

use super::PodRequests;
use super::filters::{Class, Verdict};
use super::requests::{HostPort, Resources, amount};
use crate::objects::{Map, controller_of, name, uid};
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
    /// Allocatable.
    pub allocatable: Resources,
    /// The sum of its pods' requests.
    pub requested: Resources,
    /// Milli-CPUs for scoring.
    pub scored_cpu: i64,
    /// Bytes for scoring.
    pub scored_memory: i64,
    /// Ports in use.
    pub ports: Vec<HostPort>,
    /// Number of its pods.
    pub pods: i64,
    /// Sizes of the images that the node has, by name.
    pub images: Arc<BTreeMap<String, i64>>,
    /// The node's last verdict, until the node changes.
    pub(super) verdict: Cell<Option<Verdict>>,
    /// Number of its pods by the uid of their controller.
    pub siblings: BTreeMap<String, i64>,
    /// Pods and requests by priority.
    ranks: BTreeMap<i32, Rank>,
}

/// The pods of one priority on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rank {
    pods: i64,
    requested: Resources,
}

/// A nominated pod: others are preempted to make room for it.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) placed: Placed,
    /// Uids of the victims; empty for a nomination that was read from the status, where only their
    /// deletion is visible.
    pub(super) victims: Vec<String>,
}

fn replace_images(counts: &mut BTreeMap<String, i64>, place: &mut Place, images: BTreeMap<String, i64>) {
    for image in images.keys() {
        *counts.entry(image.clone()).or_default() += 1;
    }
    for image in place.images.keys() {
        if let Some(count) = counts.get_mut(image) {
            *count -= 1;
        }
    }
    counts.retain(|_, count| *count > 0);
    place.images = Arc::new(images);
}

fn images(node: &Node) -> Option<&Vec<ContainerImage>> {
    node.status.as_ref()?.images.as_ref()
}

/// Labels of all namespaces.
pub(super) type Namespaces = BTreeMap<String, Map>;

/// All nodes and all pods on them.
#[derive(Debug, Default)]
pub struct SchedulerCache {
    pub(super) places: BTreeMap<String, Place>,
    namespaces: Namespaces,
    pods: BTreeMap<String, Placed>,
    with_affinity: BTreeSet<String>,
    pub(super) promises: BTreeMap<String, Promise>,
    /// Number of nodes that have an image, by its name.
    pub(super) images: BTreeMap<String, i64>,
    /// The class of the last pod.
    pub(super) class: RefCell<Class>,
    /// Name of the node with which the next choice begins.
    pub(super) next: RefCell<String>,
}

impl SchedulerCache {
    /// Adds or updates a node.
    pub fn set_node(&mut self, node: &Arc<Node>) {
        let place = self.places.entry(name(&**node).to_owned()).or_default();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        place.allocatable = allocatable
            .into_iter()
            .flatten()
            .map(|(resource, quantity)| (resource.as_str(), amount(resource, Quantity::of(quantity))))
            .collect();
        if place.node.as_deref().and_then(images) != images(node) {
            let each = images(node).into_iter().flatten().flat_map(|image| {
                let size = image.size_bytes.unwrap_or(0);
                image.names.iter().flatten().map(move |name| (name.clone(), size))
            });
            replace_images(&mut self.images, place, each.collect());
        }
        place.verdict.set(None);
        place.node = Some(node.clone());
    }

    /// Removes a node; pods that are bound to it stay counted until they are deleted.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(place) = self.places.get_mut(name) {
            place.node = None;
            replace_images(&mut self.images, place, BTreeMap::new());
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
        if has_terms(pod) {
            self.with_affinity.insert(uid(&**pod).to_owned());
        }
        self.pods.insert(uid(&**pod).to_owned(), placed);
    }

    /// Replaces a pod by a newer version with the same requests.
    pub fn renew(&mut self, pod: &Arc<Pod>) {
        let Some(placed) = self.pods.get_mut(uid(&**pod)) else {
            return;
        };
        let before = controller_of(&placed.pod.metadata).map(|owner| &owner.uid);
        if before == controller_of(&pod.metadata).map(|owner| &owner.uid) {
            placed.pod = Arc::clone(pod);
            return;
        }
        // Nodes count pods by their owners.
        let (node, assumed) = (placed.node.clone(), placed.assumed);
        self.place(pod, &node, assumed);
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

    /// Takes over an earlier nomination from the pod's status.
    pub fn remember(&mut self, pod: &Arc<Pod>, node: &str) {
        self.keep(pod, node, Vec::new());
    }

    pub(super) fn keep(&mut self, pod: &Arc<Pod>, node: &str, victims: Vec<String>) {
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
        rank.requested.add_all(&placed.needs.requests, sign);
        self.ranks.retain(|_, rank| rank.pods != 0);
    }

    /// Updates only the fields that filters read.
    pub(super) fn take(&mut self, placed: &Placed, sign: i64) {
        self.requested.add_all(&placed.needs.requests, sign);
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
        let pods = below().fold(self.pods, |left, rank| left.saturating_sub(rank.pods));
        pods < self.pods
            && pods < self.allocatable.get("pods")
            && needs.requests.iter().all(|(resource, wanted)| {
                let used = below().fold(self.requested.get(resource), |left, rank| {
                    left.saturating_sub(rank.requested.get(resource))
                });
                wanted <= self.allocatable.get(resource).saturating_sub(used)
            })
    }
}

/// A pod's priority.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

pub(super) type Terms<'a> = (
    &'a [PodAffinityTerm],
    &'a [PodAffinityTerm],
    Vec<(&'a WeightedPodAffinityTerm, i64)>,
);

/// Required affinity terms, required anti-affinity terms, and preferred ones with their sign.
pub(super) fn terms(pod: &Pod) -> Terms<'_> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let far = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let soft_near = near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_deref());
    let soft_far = far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_deref());
    let soft = soft_near.into_iter().flatten().map(|term| (term, 1));
    (
        near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default(),
        self::far(pod),
        soft.chain(soft_far.into_iter().flatten().map(|term| (term, -1)))
            .collect(),
    )
}

/// Required anti-affinity terms.
pub(super) fn far(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|far| far.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

/// True if the pod has affinity or anti-affinity terms.
pub(super) fn has_terms(pod: &Pod) -> bool {
    let (near, far, soft) = terms(pod);
    !near.is_empty() || !far.is_empty() || !soft.is_empty()
}
