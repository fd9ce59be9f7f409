//! Controller of Services of type `LoadBalancer`, for clusters without a cloud.

use std::sync::Arc;

use controlplane_plan::network::load_balancers::{self, Addresses, addresses_of, is_balanced, is_local, links};
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, of_service, service_of};
use crate::machinery::queue::Queue;

/// Plans Services; a key is a Service.
pub(crate) struct LoadBalancers {
    pub(crate) caches: Arc<Caches>,
    pub(crate) addresses: Addresses,
}

impl Controller for LoadBalancers {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(service) = self.caches.services.get(key) else {
            return Plan::default();
        };
        let (services, nodes) = (self.caches.services.all(), self.caches.nodes.all());
        let slices = if is_local(&service) {
            self.caches.endpoint_slices.indexed(&of_service(key))
        } else {
            Vec::new()
        };
        let slices: Vec<&EndpointSlice> = slices.iter().map(Arc::as_ref).collect();
        load_balancers::plan(&service, &services, &nodes, &slices, &self.addresses, now)
    }
}

/// All such Services share the addresses: a change of one wakes all, as does one of a node's
/// addresses or links. Endpoints decide which nodes can announce a local Service.
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
    let known = |node: &Node| (addresses_of(node), links(node));
    caches.nodes.listen(move |change| {
        if change.old.map(known) != change.new.map(known) {
            wake();
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.endpoint_slices.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for slice in change.sides() {
            let key = service_of(slice);
            let service = key.as_ref().and_then(|key| caches.services.get(key));
            if service.is_some_and(|service| is_balanced(&service) && is_local(&service))
                && let Some(key) = key
            {
                wake.push(key);
            }
        }
    });
    queue
}
