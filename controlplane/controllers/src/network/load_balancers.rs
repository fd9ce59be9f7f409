//! Controller of Services of type `LoadBalancer`, for clusters without a cloud.

use std::sync::Arc;

use controlplane_plan::network::load_balancers::{self, Addresses, addresses_of, is_balanced};
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::{cache::Key, driver::Controller, kinds::Caches, queue::Queue};

/// Plans Services; a key is a Service.
pub(crate) struct LoadBalancers {
    pub(crate) caches: Arc<Caches>,
    pub(crate) addresses: Addresses,
}

impl Controller for LoadBalancers {
    fn component(&self) -> &'static str {
        "service-controller"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let Some(service) = self.caches.services.get(key) else {
            return Plan::default();
        };
        let (services, nodes) = (self.caches.services.all(), self.caches.nodes.all());
        load_balancers::plan(&service, &services, &nodes, &self.addresses)
    }
}

/// All such Services share the addresses: a change of one wakes all, as does one of a node's
/// addresses.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("service");
    let (waking, all) = (queue.clone(), Arc::downgrade(caches));
    let wake = move || {
        let Some(caches) = all.upgrade() else { return };
        for service in caches.services.all() {
            if is_balanced(&service) {
                waking.push(Key::of(&service.metadata));
            }
        }
    };
    let wake_all = wake.clone();
    caches.services.listen(move |change| {
        if change.sides().any(is_balanced) {
            wake_all();
        }
    });
    caches.nodes.listen(move |change| {
        if change.old.map(addresses_of) != change.new.map(addresses_of) {
            wake();
        }
    });
    queue
}
