//! Controllers of ReplicaSets and of replication controllers.

use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, Object, controller_of, selects, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{Plan, REPLICA_SETS, REPLICATION_CONTROLLERS};
use controlplane_plan::workloads::replicas::{self, Snapshot};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::LabelSelector, jiff::Timestamp};

use crate::machinery::{
    cache::Key,
    driver::Controller,
    kinds::{Caches, owned_by, unmanaged},
    queue::Queue,
};

/// Plans ReplicaSets.
pub(crate) struct ReplicaSets(pub(crate) Arc<Caches>);

impl Controller for ReplicaSets {
    fn component(&self) -> &'static str {
        "replicaset-controller"
    }

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
    fn component(&self) -> &'static str {
        "replication-controller"
    }

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
    let wake = queue.clone();
    caches.replica_sets.listen(move |change| {
        if let Some(set) = change.sides().last() {
            wake.push(Key::of(&set.metadata));
        }
    });
    let (wake, all) = (queue.clone(), caches.clone());
    caches.pods.listen(move |change| {
        for pod in change.sides() {
            wake_owners(pod, "ReplicaSet", &wake, |namespace| {
                let sets = all.replica_sets.in_namespace(namespace).into_iter();
                sets.filter_map(|set| Some((Key::of(&set.metadata), set.spec.as_ref()?.selector.clone())))
                    .collect()
            });
        }
    });
    queue
}

/// Wakes the replication controllers that a change concerns.
pub(crate) fn listen_to_replication_controllers(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("replicationmanager");
    let wake = queue.clone();
    caches.replication_controllers.listen(move |change| {
        if let Some(replication_controller) = change.sides().last() {
            wake.push(Key::of(&replication_controller.0.metadata));
        }
    });
    let (wake, all) = (queue.clone(), caches.clone());
    caches.pods.listen(move |change| {
        for pod in change.sides() {
            wake_owners(pod, "ReplicationController", &wake, |namespace| {
                let replication_controllers = all.replication_controllers.in_namespace(namespace).into_iter();
                replication_controllers
                    .filter_map(|replication_controller| {
                        Some((
                            Key::of(&replication_controller.0.metadata),
                            replication_controller.0.spec.as_ref()?.selector.clone(),
                        ))
                    })
                    .collect()
            });
        }
    });
    queue
}

/// Wakes the controller of an object, or all that may adopt it.
pub(crate) fn wake_owners<K: Object>(
    object: &K,
    kind: &str,
    queue: &Queue<Key>,
    of_namespace: impl FnOnce(&str) -> Vec<(Key, LabelSelector)>,
) {
    let namespace = object.meta().namespace();
    if let Some(owner) = controller_of(object.meta()) {
        if owner.kind == kind {
            queue.push(Key::new(namespace, &owner.name));
        }
        return;
    }
    for (key, selector) in of_namespace(namespace) {
        if selects(&selector, object.meta().labels()) {
            queue.push(key);
        }
    }
}
