//! The EndpointSlice controller.

use std::sync::Arc;

use controlplane_plan::{endpoints, rollout::Failure, step::Plan};
use k8s_openapi::{
    api::{
        core::v1::{Pod, Service},
        discovery::v1::EndpointSlice,
    },
    jiff::Timestamp,
};

use crate::{cache::Key, driver::Controller, kinds::Caches, queue::Queue};

/// Plans endpoint slices; a key is a Service.
pub(crate) struct EndpointSlices(pub(crate) Arc<Caches>);

impl Controller for EndpointSlices {
    fn component(&self) -> &'static str {
        "endpoint-slice-controller"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let Some(service) = self.0.services.get(key) else {
            return Plan::default();
        };
        let pods = self.0.pods.in_namespace(&key.namespace);
        let slices = self.0.endpoint_slices.in_namespace(&key.namespace);
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        let slices: Vec<&EndpointSlice> = slices.iter().map(Arc::as_ref).collect();
        endpoints::plan(&service, &pods, &slices)
    }
}

/// Wakes Services by themselves, their pods and their slices.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new();
    let wake = queue.clone();
    caches.services.listen(move |change| {
        if let Some(service) = change.new {
            wake.push(Key::of(&service.metadata));
        }
    });
    let wake = queue.clone();
    caches.endpoint_slices.listen(move |change| {
        for slice in change.sides() {
            let labels = slice.metadata.labels.as_ref();
            if let Some(service) = labels.and_then(|labels| labels.get(endpoints::SERVICE_NAME)) {
                wake.push(Key::new(
                    slice.metadata.namespace.as_deref().unwrap_or_default(),
                    service,
                ));
            }
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for pod in change.sides() {
            let services = caches
                .services
                .in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default());
            let selecting = services
                .iter()
                .filter(|service: &&Arc<Service>| endpoints::selects(service, pod));
            selecting.for_each(|service| wake.push(Key::of(&service.metadata)));
        }
    });
    queue
}
