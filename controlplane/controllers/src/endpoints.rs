//! The EndpointSlice controller, and the service account that every namespace has.

use std::sync::Arc;

use controlplane_plan::{
    endpoints,
    rollout::Failure,
    step::{Outcome, Plan, SERVICE_ACCOUNTS, Step},
};
use k8s_openapi::{
    api::{
        core::v1::{Pod, Service},
        discovery::v1::EndpointSlice,
    },
    jiff::Timestamp,
};
use serde_json::json;

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

/// Plans each namespace's service account `default`; a key is a namespace.
pub(crate) struct ServiceAccounts(pub(crate) Arc<Caches>);

const DEFAULT: &str = "default";

impl Controller for ServiceAccounts {
    fn component(&self) -> &'static str {
        "service-account-controller"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(namespace) = self.0.namespaces.get(key) else {
            return plan;
        };
        let there = self.0.partial.get(&SERVICE_ACCOUNTS);
        if namespace.metadata.deletion_timestamp.is_none()
            && there.is_some_and(|there| there.get(&Key::new(&key.name, DEFAULT)).is_none())
        {
            plan.stage(vec![Step::Create {
                resource: SERVICE_ACCOUNTS,
                namespace: key.name.clone(),
                body: Box::new(json!({ "metadata": { "name": DEFAULT, "namespace": key.name } })),
                outcome: Outcome::default(),
            }]);
        }
        plan
    }
}

/// Wakes namespaces, and those that lose their account.
pub(crate) fn listen_accounts(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new();
    let wake = queue.clone();
    caches.namespaces.listen(move |change| {
        if let Some(namespace) = change.new {
            wake.push(Key::of(&namespace.metadata));
        }
    });
    if let Some(accounts) = caches.partial.get(&SERVICE_ACCOUNTS) {
        let wake = queue.clone();
        accounts.listen(move |change| {
            for account in change.sides() {
                let metadata = crate::kinds::Cached::metadata(account);
                wake.push(Key::new("", metadata.namespace.as_deref().unwrap_or_default()));
            }
        });
    }
    queue
}
