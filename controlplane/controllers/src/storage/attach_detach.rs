//! Attaches CSI volumes to the nodes of the pods that use them, and detaches them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, name};
use controlplane_plan::placement::claims::names;
use controlplane_plan::pod::{Pod, node_of};
use controlplane_plan::step::{Note, Plan, Step};
use controlplane_plan::storage::attach::{self, Scene, attached, attachment_name, in_use};
use controlplane_plan::storage::{claim_of, csi_name, volume_of};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, for_claim, of_driver, on_node, on_volume};
use crate::machinery::queue::Queue;

/// Source component of events.
pub(crate) const COMPONENT: &str = "attachdetach-controller";

/// Events, with the time of the error that they are about.
type News = Vec<(Note, Option<Time>)>;

/// Plans volumes; a key is a `DRIVER^HANDLE`.
pub(crate) struct AttachDetach {
    caches: Arc<Caches>,
    /// Times since when nodes do not need a volume, by its key. As upstream's, they begin anew with
    /// the process: a volume that is in use then stays attached longer, never shorter.
    unneeded: Mutex<BTreeMap<String, BTreeMap<String, Instant>>>,
    /// Last events about a volume.
    told: Mutex<BTreeMap<String, News>>,
}

impl AttachDetach {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            unneeded: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Collects all that concerns a volume.
    fn scene(&self, key: &str) -> Scene {
        let caches = &self.caches;
        let volumes = caches.volumes.indexed(&of_driver(key));
        let places = volumes.iter().filter_map(|volume| claim_of(volume));
        let places: Vec<Key> = places.map(|(namespace, name)| Key::new(namespace, name)).collect();
        let users = |place: &Key| caches.pods.indexed(&for_claim(&place.namespace, &place.name));
        let pods: Vec<Arc<Pod>> = places.iter().flat_map(users).collect();
        let listing = caches.nodes.indexed(&of_driver(key));
        let of_volumes = volumes
            .iter()
            .flat_map(|volume| caches.attachments.indexed(&on_volume(name(&**volume))));
        // The volume may be gone.
        let of_nodes = listing.iter().filter_map(|node| {
            let name = attachment_name(key, name(&**node));
            caches.attachments.get(&Key::new("", &name))
        });
        let attachments = of_volumes.chain(of_nodes);
        let attachments = attachments.filter(|own| name(&**own) == attachment_name(key, &own.spec.node_name));
        let attachments: BTreeMap<String, Arc<VolumeAttachment>> =
            attachments.map(|own| (name(&*own).to_owned(), own)).collect();
        let pods_nodes = pods.iter().filter_map(|pod| node_of(pod));
        let attachments_nodes = attachments.values().map(|own| &*own.spec.node_name);
        let nodes: BTreeSet<&str> = pods_nodes
            .chain(attachments_nodes)
            .chain(listing.iter().map(|node| name(&**node)))
            .collect();
        let nodes = nodes
            .into_iter()
            .filter_map(|node| caches.nodes.get(&Key::new("", node)));
        let driver = key.split_once('^').map_or(key, |(driver, _)| driver);
        Scene {
            name: key.to_owned(),
            driver: caches.csi_drivers.get(&Key::new("", driver)),
            claims: places.iter().filter_map(|place| caches.claims.get(place)).collect(),
            nodes: nodes.collect(),
            attachments: attachments.into_values().collect(),
            volumes,
            pods,
        }
    }

    /// Nodes that do not need the volume, and for how long.
    fn waited(&self, scene: &Scene) -> BTreeMap<String, Duration> {
        let mut all = self.unneeded.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.remove(&scene.name).unwrap_or_default();
        let nodes = scene.unneeded().into_iter();
        let since: BTreeMap<String, Instant> = nodes
            .map(|node| (node.to_owned(), before.get(node).copied().unwrap_or_else(Instant::now)))
            .collect();
        let waited = since
            .iter()
            .map(|(node, since)| (node.clone(), since.elapsed()))
            .collect();
        if !since.is_empty() {
            all.insert(scene.name.clone(), since);
        }
        waited
    }

    /// Events that were not recorded yet.
    fn untold(&self, key: &str, news: News) -> Vec<Step> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.remove(key).unwrap_or_default();
        let new = news.iter().filter(|new| !before.contains(new));
        let steps = new.map(|(note, _)| Step::Event(note.clone())).collect();
        if !news.is_empty() {
            told.insert(key.to_owned(), news);
        }
        steps
    }
}

impl Controller for AttachDetach {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let scene = self.scene(&key.name);
        let decision = attach::plan(&scene, &self.waited(&scene), now);
        let mut plan = decision.plan;
        // First: a failed stage ends the plan.
        plan.stages.insert(0, self.untold(&key.name, decision.news));
        plan.stages.retain(|stage| !stage.is_empty());
        plan
    }
}

/// Wakes volumes on changes of themselves, their claims, drivers and attachments, and of the pods
/// and nodes that have them.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("pvcs");
    let wake = Wake {
        queue: queue.clone(),
        all: Arc::downgrade(caches),
    };
    let own = wake.clone();
    caches
        .volumes
        .listen(move |change| change.sides().for_each(|volume| own.volume(volume)));
    let own = wake.clone();
    caches
        .claims
        .listen(move |change| own.with(|caches| change.sides().for_each(|claim| own.claim(caches, claim))));
    let own = wake.clone();
    caches
        .pods
        .listen(move |change| own.with(|caches| change.sides().for_each(|pod| own.pod(caches, pod))));
    let own = wake.clone();
    caches.attachments.listen(move |change| {
        own.with(|caches| change.sides().for_each(|attachment| own.attachment(caches, attachment)));
    });
    let own = wake.clone();
    caches
        .nodes
        .listen(move |change| own.with(|caches| change.sides().for_each(|node| own.node(caches, node))));
    caches.csi_drivers.listen(move |change| {
        wake.with(|caches| {
            let driver = change.sides().last().map(name);
            let is_its = |volume: &PersistentVolume| {
                let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
                source.map(|source| &*source.driver) == driver
            };
            let volumes = caches.volumes.all();
            volumes
                .iter()
                .filter(|volume| is_its(volume))
                .for_each(|volume| wake.volume(volume));
        });
    });
    queue
}

/// Finds the volumes that a change concerns.
#[derive(Clone)]
struct Wake {
    queue: Arc<Queue<Key>>,
    all: Weak<Caches>,
}

impl Wake {
    fn with(&self, act: impl FnOnce(&Caches)) {
        if let Some(caches) = self.all.upgrade() {
            act(&caches);
        }
    }

    fn volume(&self, volume: &PersistentVolume) {
        if let Some(name) = csi_name(volume) {
            self.queue.push(Key::new("", &name));
        }
    }

    fn named(&self, caches: &Caches, volume: Option<&str>) {
        let volume = volume.and_then(|volume| caches.volumes.get(&Key::new("", volume)));
        if let Some(volume) = volume {
            self.volume(&volume);
        }
    }

    fn claim(&self, caches: &Caches, claim: &PersistentVolumeClaim) {
        self.named(caches, volume_of(claim));
    }

    fn pod(&self, caches: &Caches, pod: &Pod) {
        if node_of(pod).is_none() {
            return;
        }
        for (claim, _) in names(pod) {
            for volume in caches.volumes.indexed(&for_claim(pod.metadata.namespace(), &claim)) {
                self.volume(&volume);
            }
        }
    }

    fn attachment(&self, caches: &Caches, attachment: &VolumeAttachment) {
        self.named(caches, attachment.spec.source.persistent_volume_name.as_deref());
    }

    fn node(&self, caches: &Caches, node: &Node) {
        for volume in attached(node).chain(in_use(node)) {
            self.queue.push(Key::new("", volume));
        }
        let own = on_node(name(node));
        for attachment in caches.attachments.indexed(&own) {
            self.attachment(caches, &attachment);
        }
        for pod in caches.pods.indexed(&own) {
            self.pod(caches, &pod);
        }
    }
}
