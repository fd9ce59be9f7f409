//! The ReplicaSet controller.

use std::sync::Arc;

use controlplane_plan::{
    objects::{Meta as _, controller_of, selects, uid},
    pod::Pod,
    replicas::{self, Snapshot},
    rollout::Failure,
    step::Plan,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
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
                set: &set,
                pods: &pods,
                related: &related,
                failure,
            },
            now,
        )
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
            wake_owners(pod, &all, &wake);
        }
    });
    queue
}

fn wake_owners(pod: &Pod, caches: &Caches, queue: &Queue<Key>) {
    let namespace = pod.metadata.namespace();
    if let Some(owner) = controller_of(&pod.metadata) {
        if owner.kind == "ReplicaSet" {
            queue.push(Key::new(namespace, &owner.name));
        }
        return;
    }
    for set in caches.replica_sets.in_namespace(namespace) {
        let selector = set.spec.as_ref().map(|spec| &spec.selector);
        if selector.is_some_and(|selector| selects(selector, pod.metadata.labels())) {
            queue.push(Key::of(&set.metadata));
        }
    }
}
