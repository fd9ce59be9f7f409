//! The StatefulSet controller.

use std::sync::{Arc, Mutex, PoisonError};

use controlplane_plan::objects::{Meta as _, name, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use controlplane_plan::workloads::stateful_sets::{self, Backoff, Snapshot};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, owned_by, unmanaged};
use crate::machinery::queue::Queue;
use crate::workloads::replica_sets::wake_owners;

/// Plans `StatefulSet`s.
pub(crate) struct StatefulSets {
    caches: Arc<Caches>,
    backoff: Mutex<Backoff>,
}

impl StatefulSets {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            backoff: Mutex::default(),
        }
    }
}

impl Controller for StatefulSets {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let caches = &self.caches;
        let Some(set) = caches.stateful_sets.get(key) else {
            return Plan::default();
        };
        let mut pods = caches.pods.indexed(&owned_by(uid(&*set)));
        pods.extend(caches.pods.indexed(&unmanaged(&key.namespace)));
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        let revisions = caches.controller_revisions.in_namespace(&key.namespace);
        let revisions: Vec<&ControllerRevision> = revisions.iter().map(Arc::as_ref).collect();
        let snapshot = Snapshot {
            set: &set,
            revisions: &revisions,
            pods: &pods,
            claims: &|name| caches.claims.get(&Key::new(&key.namespace, name)),
            failure,
        };
        let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
        stateful_sets::plan(&snapshot, &mut backoff, now)
    }
}

/// Wakes the `StatefulSet`s that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("statefulset");
    caches.stateful_sets.wake(&queue);
    let sets = &caches.stateful_sets;
    wake_owners(&caches.pods, "StatefulSet", sets, &queue, |set| {
        Some(&set.spec.as_ref()?.selector)
    });
    wake_owners(&caches.controller_revisions, "StatefulSet", sets, &queue, |set| {
        Some(&set.spec.as_ref()?.selector)
    });
    let (wake, all) = (queue.clone(), caches.clone());
    caches.claims.listen(move |change| {
        // A pod may wait for a claim's deletion. The claim's name ends with that of the pod.
        let Some(claim) = change.old.filter(|_| change.new.is_none()) else {
            return;
        };
        let Some(parent) = stateful_sets::parent(name(claim)) else {
            return;
        };
        for set in all.stateful_sets.in_namespace(claim.metadata.namespace()) {
            if parent.ends_with(name(&*set)) {
                wake.push(Key::of(&set.metadata));
            }
        }
    });
    queue
}
