//! Endpoints of Services, as their `EndpointSlice`s name them.

use k8s_openapi::api::discovery::v1::{Endpoint as Written, EndpointPort, EndpointSlice};
use store::{Prefix, Store};

use crate::request::failure::Failure;

/// Label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Ready endpoint of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: String,
    pub(crate) port: u16,
    /// The pod that it is, in the namespace of the Service.
    pub(crate) pod: Option<String>,
    pub(crate) node: Option<String>,
}

/// The ready endpoints of a Service behind a port of this name.
///
/// # Errors
/// 500 for a slice that is none.
pub(crate) fn ready(store: &Store, namespace: &str, service: &str, port: &str) -> Result<Vec<Endpoint>, Failure> {
    let mut found = Vec::new();
    let prefix = Prefix::namespace("discovery.k8s.io", "endpointslices", namespace);
    for entry in store.present(&prefix) {
        if entry.attributes.labels.get(SERVICE).is_none_or(|name| name != service) {
            continue;
        }
        let slice: EndpointSlice = serde_json::from_slice(&entry.bytes).map_err(Failure::internal)?;
        let named = |own: &&EndpointPort| own.name.as_deref().unwrap_or_default() == port;
        let number = slice.ports.iter().flatten().find(named).and_then(|own| own.port);
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            continue;
        };
        found.extend(slice.endpoints.iter().flatten().filter_map(|own| endpoint(own, number)));
    }
    Ok(found)
}

/// True if a Service has slices at all.
pub(crate) fn has_slices(store: &Store, namespace: &str, service: &str) -> bool {
    let prefix = Prefix::namespace("discovery.k8s.io", "endpointslices", namespace);
    let mut slices = store.present(&prefix).into_iter();
    slices.any(|entry| entry.attributes.labels.get(SERVICE).is_some_and(|name| name == service))
}

fn endpoint(written: &Written, port: u16) -> Option<Endpoint> {
    let ready = written.conditions.as_ref().and_then(|conditions| conditions.ready);
    let target = written.target_ref.as_ref();
    let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
    let endpoint = Endpoint {
        address: written.addresses.first()?.clone(),
        port,
        pod: pod.and_then(|pod| pod.name.clone()),
        node: written.node_name.clone(),
    };
    (ready != Some(false)).then_some(endpoint)
}
