//! Controllers of claims and volumes, which share an account and a source of events, as upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, name, uid};
use controlplane_plan::placement::claims::names;
use controlplane_plan::pod::Pod;
use controlplane_plan::pod::node_of;
use controlplane_plan::step::{Note, Plan, Step, Target};
use controlplane_plan::storage::claims::{self, Scene};
use controlplane_plan::storage::volumes::{self, Claim};
use controlplane_plan::storage::{claim_class, claim_of, default_class, is_bound, is_default, volume_class, volume_of};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, for_claim, in_class, on_volume};
use crate::machinery::queue::Queue;

/// Source component of events.
pub(crate) const COMPONENT: &str = "persistentvolume-controller";
/// Interval at which an event for an unchanged state is repeated: events expire.
const AGAIN: Duration = Duration::from_mins(5);
/// Longest time that a cache may lag.
const BEHIND: Duration = Duration::from_secs(1);

/// Plans claims.
pub(crate) struct Claims {
    caches: Arc<Caches>,
    /// Last events about pending claims.
    told: Mutex<BTreeMap<Key, (Note, Timestamp)>>,
}

impl Claims {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            told: Mutex::new(BTreeMap::new()),
        }
    }

    /// True if the event should be recorded: it was not recorded recently.
    fn is_news(&self, key: &Key, note: &Note, now: Timestamp) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let known = told.get(key).is_some_and(|(last, at)| {
            let age = Duration::try_from(now.duration_since(*at)).unwrap_or_default();
            (last.reason, &last.message, &last.about.uid) == (note.reason, &note.message, &note.about.uid)
                && age < AGAIN
        });
        if !known {
            told.insert(key.clone(), (note.clone(), now));
        }
        !known
    }

    fn forget(&self, key: &Key) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Volumes that may concern a claim.
    fn volumes(&self, claim: &PersistentVolumeClaim, key: &Key) -> Vec<Arc<PersistentVolume>> {
        let mut volumes = self.caches.volumes.indexed(&for_claim(&key.namespace, &key.name));
        if let Some(named) = volume_of(claim) {
            volumes.extend(self.caches.volumes.get(&Key::new("", named)));
        } else {
            volumes.extend(self.caches.volumes.indexed(&in_class(claim_class(claim))));
        }
        volumes
    }
}

impl Controller for Claims {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(claim) = self.caches.claims.get(key) else {
            self.forget(key);
            return Plan::default();
        };
        let class = self.caches.storage_classes.get(&Key::new("", claim_class(&claim)));
        let classes = self.caches.storage_classes.all();
        let pods = if is_bound(&claim) {
            Vec::new()
        } else {
            self.caches.pods.in_namespace(&key.namespace)
        };
        let waits = |pod: &&Arc<Pod>| node_of(pod).is_none() && names(pod).iter().any(|(own, _)| *own == key.name);
        let waiting: Vec<String> = pods.iter().filter(waits).map(|pod| name(&**pod).to_owned()).collect();
        let decision = claims::plan(
            &Scene {
                claim: &claim,
                volumes: &self.volumes(&claim, key),
                class: class.as_deref(),
                default_class: default_class(&classes),
                waiting: &waiting,
            },
            now,
        );
        let mut plan = decision.plan;
        match decision.news {
            Some(note) => {
                if self.is_news(key, &note, now) {
                    plan.stage(vec![Step::Event(note)]);
                }
                plan.again(AGAIN);
            }
            None => self.forget(key),
        }
        plan
    }
}

/// Plans volumes.
pub(crate) struct Volumes {
    caches: Arc<Caches>,
    /// Uids of claims that volumes refer to and that are missing in the cache, and whether the
    /// server has them.
    asked: Mutex<BTreeMap<String, bool>>,
}

impl Volumes {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            asked: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Controller for Volumes {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(volume) = self.caches.volumes.get(key) else {
            return Plan::default();
        };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let wanted = reference.and_then(|claim| claim.uid.as_deref()).unwrap_or_default();
        let place = claim_of(&volume).map(|(namespace, name)| Key::new(namespace, name));
        let claim = place.and_then(|place| self.caches.claims.get(&place));
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match claim.as_deref().filter(|claim| uid(*claim) == wanted) {
            Some(claim) => {
                asked.remove(wanted);
                Claim::There(claim)
            }
            None if asked.get(wanted) == Some(&false) => Claim::Gone,
            None if asked.remove(wanted) == Some(true) => {
                // The cache lags: its next change wakes the volume.
                let mut plan = Plan::default();
                plan.again(BEHIND);
                return plan;
            }
            None => Claim::Unseen,
        };
        volumes::plan(&volume, known, now)
    }

    fn learn(&self, target: &Target, exists: bool, _now: Timestamp) {
        let volumes = self.caches.volumes.all();
        let uid_of = |volume: &Arc<PersistentVolume>| volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone();
        let named: BTreeSet<String> = volumes.iter().filter_map(uid_of).collect();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(target.uid.clone(), exists);
        // Bounded by the number of volumes.
        asked.retain(|uid, _| named.contains(uid));
    }
}

/// Wakes claims on changes of themselves, of volumes, classes and pods that concern them.
pub(crate) fn listen_claims(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("claims");
    caches.claims.wake(&queue);
    let (wake, claims) = (queue.clone(), caches.claims.clone());
    caches.volumes.listen(move |change| {
        for volume in change.sides() {
            if let Some((namespace, name)) = claim_of(volume) {
                wake.push(Key::new(namespace, name));
            }
            let mut concerned = claims.indexed(&on_volume(name(volume)));
            if volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none()) {
                concerned.extend(claims.indexed(&in_class(volume_class(volume))));
            }
            for claim in concerned {
                wake.push(Key::of(&claim.metadata));
            }
        }
    });
    let (wake, claims) = (queue.clone(), caches.claims.clone());
    caches.storage_classes.listen(move |change| {
        if let Some(class) = change.sides().last() {
            let mut concerned = claims.indexed(&in_class(name(class)));
            if is_default(class) {
                concerned.extend(claims.indexed(&in_class("")));
            }
            for claim in concerned {
                wake.push(Key::of(&claim.metadata));
            }
        }
    });
    let wake = queue.clone();
    caches.pods.listen(move |change| {
        let appeared = change.old.is_none() && change.new.is_some_and(|pod| node_of(pod).is_none());
        if let Some(pod) = change.new.filter(|_| appeared) {
            for (claim, _) in names(pod) {
                wake.push(Key::new(pod.metadata.namespace(), &claim));
            }
        }
    });
    queue
}

/// Wakes volumes that changed, or whose claim did.
pub(crate) fn listen_volumes(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("volumes");
    caches.volumes.wake_if(&queue, |_| true);
    let (wake, volumes) = (queue.clone(), caches.volumes.clone());
    caches.claims.listen(move |change| {
        for claim in change.sides() {
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            for volume in volumes.indexed(&for_claim(namespace, name(claim))) {
                wake.push(Key::of(&volume.metadata));
            }
        }
    });
    queue
}
