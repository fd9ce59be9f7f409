//! Controllers of ReplicaSets and of replication controllers.

use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, Object, controller_of, selects, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{Plan, REPLICA_SETS, REPLICATION_CONTROLLERS};
use controlplane_plan::workloads::replicas::{self, Snapshot};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::{Cache, Cached, Key};
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, owned_by, unmanaged};
use crate::machinery::queue::Queue;

/// Plans ReplicaSets.
pub(crate) struct ReplicaSets(pub(crate) Arc<Caches>);

impl Controller for ReplicaSets {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(set) = self.0.replica_sets.get(key) else {
            return Plan::default();
        };
        let mut pods = self.0.pods.indexed(&owned_by(uid(&*set)));
        pods.extend(self.0.pods.indexed(&unmanaged(&key.namespace)));
        let siblings = controller_of(&set.metadata).map(|owner| self.0.replica_sets.indexed(&owned_by(&owner.uid)));
        let siblings = siblings.unwrap_or_else(|| vec![set.clone()]);
        let related: Vec<Arc<Pod>> = siblings
            .iter()
            .flat_map(|sibling| self.0.pods.indexed(&owned_by(uid(&**sibling))))
            .collect();
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        let related: Vec<&Pod> = related.iter().map(Arc::as_ref).collect();
        replicas::plan(
            &Snapshot {
                resource: REPLICA_SETS,
                set: &set,
                pods: &pods,
                related: &related,
                failure,
            },
            now,
        )
    }
}

/// Plans replication controllers.
pub(crate) struct ReplicationControllers(pub(crate) Arc<Caches>);

impl Controller for ReplicationControllers {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(replication_controller) = self.0.replication_controllers.get(key) else {
            return Plan::default();
        };
        let own = self.0.pods.indexed(&owned_by(uid(&*replication_controller)));
        let free = self.0.pods.indexed(&unmanaged(&key.namespace));
        let pods: Vec<&Pod> = own.iter().chain(&free).map(Arc::as_ref).collect();
        let related: Vec<&Pod> = own.iter().map(Arc::as_ref).collect();
        let snapshot = Snapshot {
            resource: REPLICATION_CONTROLLERS,
            set: &replication_controller.0,
            pods: &pods,
            related: &related,
            failure,
        };
        replicas::plan(&snapshot, now)
    }
}

/// Wakes the ReplicaSets that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("replicaset");
    caches.replica_sets.wake(&queue);
    wake_owners(&caches.pods, "ReplicaSet", &caches.replica_sets, &queue, |set| {
        Some(&set.spec.as_ref()?.selector)
    });
    queue
}

/// Wakes the replication controllers that a change concerns.
pub(crate) fn listen_to_replication_controllers(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("replicationmanager");
    caches.replication_controllers.wake(&queue);
    let owners = &caches.replication_controllers;
    wake_owners(&caches.pods, "ReplicationController", owners, &queue, |owner| {
        Some(&owner.0.spec.as_ref()?.selector)
    });
    queue
}

/// Wakes the controllers of the objects that change, or all owners that may adopt them.
pub(crate) fn wake_owners<K: Cached, O: Cached>(
    objects: &Cache<K>,
    kind: &'static str,
    owners: &Arc<Cache<O>>,
    queue: &Arc<Queue<Key>>,
    selector: fn(&O) -> Option<&LabelSelector>,
) {
    let (owners, queue) = (owners.clone(), queue.clone());
    objects.listen(move |change| {
        for object in change.sides().map(Object::meta) {
            let namespace = object.namespace();
            if let Some(owner) = controller_of(object) {
                if owner.kind == kind {
                    queue.push(Key::new(namespace, &owner.name));
                }
                continue;
            }
            for owner in owners.in_namespace(namespace) {
                if selector(&owner).is_some_and(|selector| selects(selector, object.labels())) {
                    queue.push(Key::of(owner.meta()));
                }
            }
        }
    });
}
