//! The DaemonSet controller.

use std::sync::{Arc, Mutex, PoisonError};

use controlplane_plan::objects::uid;
use controlplane_plan::pod::Pod;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::daemon_sets::{self, Backoff, Snapshot};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, owned_by, unmanaged};
use crate::machinery::queue::Queue;
use crate::workloads::replica_sets::wake_owners;

/// Plans `DaemonSet`s.
pub(crate) struct DaemonSets {
    caches: Arc<Caches>,
    backoff: Mutex<Backoff>,
}

impl DaemonSets {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            backoff: Mutex::default(),
        }
    }
}

impl Controller for DaemonSets {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let caches = &self.caches;
        let Some(set) = caches.daemon_sets.get(key) else {
            return Plan::default();
        };
        let mut pods = caches.pods.indexed(&owned_by(uid(&*set)));
        pods.extend(caches.pods.indexed(&unmanaged(&key.namespace)));
        let (revisions, nodes) = (
            caches.controller_revisions.in_namespace(&key.namespace),
            caches.nodes.all(),
        );
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        let revisions: Vec<&ControllerRevision> = revisions.iter().map(Arc::as_ref).collect();
        let nodes: Vec<&Node> = nodes.iter().map(Arc::as_ref).collect();
        let snapshot = Snapshot {
            set: &set,
            revisions: &revisions,
            pods: &pods,
            nodes: &nodes,
            failure,
        };
        let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
        daemon_sets::plan(&snapshot, &mut backoff, now)
    }
}

/// Wakes the `DaemonSet`s that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("daemonset");
    caches.daemon_sets.wake(&queue);
    let sets = &caches.daemon_sets;
    wake_owners(&caches.pods, "DaemonSet", sets, &queue, |set| {
        Some(&set.spec.as_ref()?.selector)
    });
    wake_owners(&caches.controller_revisions, "DaemonSet", sets, &queue, |set| {
        Some(&set.spec.as_ref()?.selector)
    });
    let (wake, all) = (queue.clone(), caches.clone());
    caches.nodes.listen(move |change| {
        let read = |node: Option<&Node>| {
            node.map(|node| {
                (
                    node.metadata.labels.clone(),
                    node.spec.as_ref().and_then(|spec| spec.taints.clone()),
                )
            })
        };
        // Nodes report often, but placement depends on few of the fields.
        if read(change.old) != read(change.new) {
            for set in all.daemon_sets.all() {
                wake.push(Key::of(&set.metadata));
            }
        }
    });
    queue
}
