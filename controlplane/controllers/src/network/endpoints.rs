//! Controllers of Services' endpoints: `EndpointSlice`s, `Endpoints`, and slices that mirror
//! user-written `Endpoints`.

use std::sync::Arc;

use controlplane_plan::network::endpoints;
use controlplane_plan::objects::Meta as _;
use controlplane_plan::pod::Pod;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, of_service, on_node, service_of};
use crate::machinery::queue::Queue;

/// Plans endpoint slices; a key is a Service.
pub(crate) struct EndpointSlices(pub(crate) Arc<Caches>);

/// Plans `Endpoints`; a key is a Service.
pub(crate) struct Legacy(pub(crate) Arc<Caches>);

/// Plans mirrored slices; a key is an `Endpoints`, and the Service of its name.
pub(crate) struct Mirror(pub(crate) Arc<Caches>);

impl Controller for EndpointSlices {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let Some(service) = self.0.services.get(key) else {
            return Plan::default();
        };
        let pods = self.0.pods.in_namespace(&key.namespace);
        let slices = self.0.endpoint_slices.indexed(&of_service(key));
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        let slices: Vec<&EndpointSlice> = slices.iter().map(Arc::as_ref).collect();
        let zone_of = |node: &str| {
            let node = self.0.nodes.get(&Key::new("", node))?;
            Some(endpoints::zone(&node).to_owned())
        };
        let nodes = if endpoints::is_topology_aware(&service) {
            self.0.nodes.all()
        } else {
            Vec::new()
        };
        endpoints::plan_slices(&service, &pods, &slices, &zone_of, &nodes)
    }
}

impl Controller for Legacy {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let service = self.0.services.get(key);
        let endpoints = self.0.endpoints.get(key);
        let pods = match service {
            Some(_) => self.0.pods.in_namespace(&key.namespace),
            None => Vec::new(),
        };
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        endpoints::plan_endpoints(service.as_deref(), &pods, endpoints.as_deref())
    }
}

impl Controller for Mirror {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let (endpoints, service) = (self.0.endpoints.get(key), self.0.services.get(key));
        let slices = self.0.endpoint_slices.indexed(&of_service(key));
        let slices: Vec<&EndpointSlice> = slices.iter().map(Arc::as_ref).collect();
        endpoints::plan_mirror(&key.name, endpoints.as_deref(), service.as_deref(), &slices)
    }
}

/// Wakes the Services that select a pod.
fn wake_for(pod: &Pod, caches: &Caches, queue: &Queue<Key>) {
    let services = caches.services.in_namespace(pod.metadata.namespace());
    let selecting = services
        .iter()
        .filter(|service: &&Arc<Service>| endpoints::selects(service, pod));
    selecting.for_each(|service| queue.push(Key::of(&service.metadata)));
}

/// Wakes the Services that select a changed pod.
fn listen_to_pods(caches: &Arc<Caches>, queue: &Arc<Queue<Key>>) {
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        change.sides().for_each(|pod| wake_for(pod, &caches, &wake));
    });
}

/// Wakes Services on changes of themselves, their pods, their slices, and the zones of nodes.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("endpoint_slice");
    caches.services.wake_if(&queue, |_| true);
    let wake = queue.clone();
    caches.endpoint_slices.listen(move |change| {
        change.sides().filter_map(service_of).for_each(|key| wake.push(key));
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.nodes.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        // The pods of one that goes are endpoints until their next change: it may come back.
        if let Some(node) = change.new
            && change.old.map(endpoints::zone) != Some(endpoints::zone(node))
        {
            for pod in caches.pods.indexed(&on_node(node.metadata.name())) {
                wake_for(&pod, &caches, &wake);
            }
        }
        if change.old.and_then(endpoints::share) != change.new.and_then(endpoints::share) {
            let all = caches.services.all();
            let aware = all.iter().filter(|service| endpoints::is_topology_aware(service));
            aware.for_each(|service| wake.push(Key::of(&service.metadata)));
        }
    });
    listen_to_pods(caches, &queue);
    queue
}

/// Wakes Services on changes of themselves, their pods, and their `Endpoints`.
pub(crate) fn listen_legacy(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("endpoint");
    caches.services.wake(&queue);
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.endpoints.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for endpoints in change.sides() {
            // Endpoints that a user created without a Service are left alone.
            let labels = endpoints.metadata.labels.as_ref();
            let managed = labels.is_some_and(|labels| labels.contains_key(endpoints::MANAGED_ENDPOINTS));
            let key = Key::of(&endpoints.metadata);
            if managed || caches.services.get(&key).is_some() {
                wake.push(key);
            }
        }
    });
    listen_to_pods(caches, &queue);
    queue
}

/// Wakes `Endpoints` on changes of themselves, the Services of their names, and their slices.
pub(crate) fn listen_mirror(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("endpoint_slice_mirroring");
    caches.endpoints.wake(&queue);
    caches.services.wake(&queue);
    let wake = queue.clone();
    caches.endpoint_slices.listen(move |change| {
        change.sides().filter_map(service_of).for_each(|key| wake.push(key));
    });
    queue
}
