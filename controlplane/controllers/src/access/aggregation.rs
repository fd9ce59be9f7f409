//! Controller of aggregated cluster roles.

use std::sync::Arc;

use controlplane_plan::access::aggregation;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Plans the rules of each role with an aggregation rule.
pub(crate) struct Aggregation(pub(crate) Arc<Caches>);

impl Controller for Aggregation {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        match self.0.cluster_roles.get(key) {
            Some(role) => aggregation::plan(&role, &self.0.cluster_roles.all()),
            None => Plan::default(),
        }
    }
}

/// Wakes aggregated roles on a change of any role.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("ClusterRoleAggregator");
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.cluster_roles.listen(move |_change| {
        let Some(caches) = all.upgrade() else { return };
        for role in caches.cluster_roles.all() {
            if role.aggregation_rule.is_some() {
                wake.push(Key::of(&role.metadata));
            }
        }
    });
    queue
}
