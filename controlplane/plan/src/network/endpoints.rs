//! Endpoints of a Service: its pods as endpoint slices, the same as `Endpoints` for older clients,
//! and slices that mirror user-written `Endpoints` of Services without a selector.

pub mod cluster_dns;
mod legacy;
mod mirror;
mod slice;
mod slices;
#[cfg(test)]
mod tests;
mod topology;

use k8s_openapi::api::core::v1::{Container, ObjectReference, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::objects::{Map, Meta as _, name, uid};
use crate::pod::Pod;
use crate::pod::is_finished;
pub use legacy::{MANAGED as MANAGED_ENDPOINTS, plan as plan_endpoints};
pub use mirror::plan as plan_mirror;
pub use slice::SERVICE_NAME;
pub use slices::plan as plan_slices;
pub use topology::{is_topology_aware, share, zone};

/// Label of endpoints of a headless Service.
const HEADLESS: &str = "service.kubernetes.io/headless";
const IPV4: &str = "IPv4";
const IPV6: &str = "IPv6";

/// True if a Service selects a pod.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        let labels = pod.metadata.labels();
        !selector.is_empty()
            && selector
                .iter()
                .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    })
}

/// True if the Service selects pods at all.
fn has_selector(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.selector.as_ref())
        .is_some_and(|selector| !selector.is_empty())
}

/// True if the controllers manage the Service's endpoints: it is no `ExternalName`, has a selector,
/// and is not being deleted.
fn is_served(service: &Service) -> bool {
    let external = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    !external && has_selector(service) && service.metadata.deletion_timestamp.is_none()
}

fn publishes_unready(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// True if the Service is headless.
fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    matches!(address, None | Some("" | "None"))
}

/// Pods that can serve, oldest first: selected, with an address, not finished.
fn answering<'a>(service: &Service, pods: &[&'a Pod], terminating: bool) -> Vec<&'a Pod> {
    let mut answering: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| {
            selects(service, pod)
                && !is_finished(pod)
                && (terminating || !pod.metadata.is_deleting())
                && addresses(pod).next().is_some()
        })
        .collect();
    answering.sort_by_key(|pod| (pod.metadata.created, pod.metadata.name()));
    answering
}

/// All addresses of a pod.
fn addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.status.addresses.iter().map(|address| &**address)
}

/// The pod's first address of a family.
fn address_of<'a>(pod: &'a Pod, family: &str) -> Option<&'a str> {
    addresses(pod).find(|address| family_of(address) == family)
}

fn family_of(address: &str) -> &'static str {
    if address.contains(':') { IPV6 } else { IPV4 }
}

/// Address families of a Service, the primary one first.
fn families(service: &Service) -> Vec<&'static str> {
    let spec = service.spec.as_ref();
    let named = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    if named.is_empty() {
        let address = spec.and_then(|spec| spec.cluster_ip.as_deref());
        return vec![address.map_or(IPV4, family_of)];
    }
    let known = |name: &String| if name == IPV6 { IPV6 } else { IPV4 };
    named.iter().map(known).collect()
}

/// The pod as `targetRef`.
fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.metadata.namespace().to_owned()),
        name: Some(name(pod).to_owned()),
        uid: Some(uid(pod).to_owned()),
        ..ObjectReference::default()
    }
}

/// Host name of the pod, if it has a DNS name in the Service's domain.
fn host_name(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let named = spec.subdomain == service.metadata.name && pod.metadata.namespace() == service.metadata.namespace();
    spec.hostname.clone().filter(|name| named && !name.is_empty())
}

/// Port number of a Service's target port in one pod.
fn number(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match port.target_port.as_ref() {
        None | Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let spec = pod.spec.as_ref()?;
    let lasts = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let lasting = spec.init_containers.iter().flatten().filter(lasts);
    let mut ports = spec
        .containers
        .iter()
        .chain(lasting)
        .flat_map(|container| container.ports.iter().flatten());
    let found = ports
        .find(|known| known.name.as_ref() == Some(name) && known.protocol.as_deref().unwrap_or("TCP") == protocol)?;
    Some(found.container_port)
}

/// Merge patch from one map to another: removed keys become null.
fn change_of(have: Option<&Map>, want: &Map) -> serde_json::Value {
    let gone = have.into_iter().flatten().filter(|(key, _)| !want.contains_key(*key));
    let gone = gone.map(|(key, _)| (key.clone(), serde_json::Value::Null));
    let want = want.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
    gone.chain(want).collect::<serde_json::Map<_, _>>().into()
}
