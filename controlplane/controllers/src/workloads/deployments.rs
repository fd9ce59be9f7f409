//! The Deployment controller.

use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, controller_of, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::{self, Failure, Snapshot};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, owned_by};
use crate::machinery::queue::Queue;
use crate::workloads::replica_sets::wake_owners;

/// Plans Deployments.
pub(crate) struct Deployments(pub(crate) Arc<Caches>);

impl Controller for Deployments {
    fn plan(&self, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(deployment) = self.0.deployments.get(key) else {
            return Plan::default();
        };
        let sets = self.0.replica_sets.in_namespace(&key.namespace);
        let sets: Vec<&ReplicaSet> = sets.iter().map(Arc::as_ref).collect();
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        if recreates(&deployment) {
            let own = sets.iter().filter(|set| rollout::manages(&deployment, set));
            pods.extend(own.flat_map(|set| self.0.pods.indexed(&owned_by(uid(*set)))));
        }
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        rollout::plan(
            &Snapshot {
                deployment: &deployment,
                replica_sets: &sets,
                pods: &pods,
                failure,
            },
            now,
        )
    }
}

fn recreates(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("Recreate"))
}

/// Wakes the Deployments that a change concerns.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("deployment");
    caches.deployments.wake(&queue);
    wake_owners(
        &caches.replica_sets,
        "Deployment",
        &caches.deployments,
        &queue,
        |deployment| Some(&deployment.spec.as_ref()?.selector),
    );
    let (wake, all) = (queue.clone(), caches.clone());
    caches.pods.listen(move |change| {
        for pod in change.sides() {
            if let Some(key) = recreating_owner(pod, &all) {
                wake.push(key);
            }
        }
    });
    queue
}

/// The Deployment that waits for the pod's deletion.
fn recreating_owner(pod: &Pod, caches: &Caches) -> Option<Key> {
    let namespace = pod.metadata.namespace();
    let set = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")?;
    let set = caches.replica_sets.get(&Key::new(namespace, &set.name))?;
    let key = Key::new(
        namespace,
        &controller_of(&set.metadata)
            .filter(|owner| owner.kind == "Deployment")?
            .name,
    );
    caches
        .deployments
        .get(&key)
        .is_some_and(|deployment| recreates(&deployment))
        .then_some(key)
}
