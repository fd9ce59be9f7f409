//! Creates the claims of generic ephemeral volumes: they belong to the pod and are deleted with it.

use std::sync::Arc;

use controlplane_plan::step::Plan;
use controlplane_plan::storage::ephemeral;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Source component of events.
pub(crate) const COMPONENT: &str = "ephemeral_volume";

/// Plans pods with ephemeral volumes.
pub(crate) struct Ephemeral(pub(crate) Arc<Caches>);

impl Controller for Ephemeral {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        self.0.pods.get(key).map_or_else(Plan::default, |pod| {
            ephemeral::plan(&pod, |name| self.0.claims.get(&Key::new(&key.namespace, name)))
        })
    }
}

/// Wakes pods with ephemeral volumes when they are created and when such a claim is deleted.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue = Queue::new("ephemeral_volume");
    caches.pods.wake_if(&queue, ephemeral::has_claims);
    let wake = queue.clone();
    caches.claims.listen(move |change| {
        if change.new.is_some() {
            return;
        }
        let owners = change
            .old
            .iter()
            .flat_map(|claim| claim.metadata.owner_references.iter().flatten());
        let namespace = change
            .old
            .and_then(|claim| claim.metadata.namespace.as_deref())
            .unwrap_or_default();
        for owner in owners.filter(|owner| owner.kind == "Pod") {
            wake.push(Key::new(namespace, &owner.name));
        }
    });
    queue
}
