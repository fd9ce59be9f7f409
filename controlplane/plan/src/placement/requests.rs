//! Resources that a pod requests from its node.

use std::collections::BTreeMap;

use crate::pod::Pod;

/// Default requests for scoring, for a container without any (`DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`).
const UNASKED_CPU_MILLI: i64 = 100;
const UNASKED_MEMORY: i64 = 200 * 1024 * 1024;

/// A host port: protocol, address (`0.0.0.0` for all), number.
pub type HostPort = (String, String, i32);

/// Resource requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRequests {
    /// By resource; CPU in thousandths, everything else in whole units.
    pub requests: BTreeMap<String, i64>,
    /// Milli-CPUs for scoring, never zero.
    pub scored_cpu: i64,
    /// Bytes for scoring, never zero.
    pub scored_memory: i64,
    /// Host ports that it binds.
    pub ports: Vec<HostPort>,
}

/// A quantity as a number: CPU in thousandths, everything else in whole units.
pub(super) fn amount(resource: &str, quantity: api::quantity::Quantity) -> i64 {
    if resource == "cpu" {
        quantity.milli()
    } else {
        quantity.value()
    }
}

impl PodRequests {
    /// Returns the requests of a pod.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = pod.spec.as_ref() else {
            return Self::default();
        };
        let requests: BTreeMap<String, i64> = api::pod::requests(spec)
            .into_iter()
            .map(|(resource, quantity)| (resource.clone(), amount(&resource, quantity)))
            .filter(|(_, amount)| *amount != 0)
            .collect();
        let containers = spec.containers.iter();
        let asks = |name: &'static str| {
            move |container: &&k8s_openapi::api::core::v1::Container| {
                let requests = container
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref());
                requests.is_some_and(|requests| requests.contains_key(name))
            }
        };
        let own = api::pod::level::own(spec).and_then(|own| own.requests.as_ref());
        let unasked = |name| {
            // Pod-level requests stand for all containers.
            if own.is_some_and(|own| own.contains_key(name)) {
                return 0;
            }
            let count = containers.clone().filter(|container| !asks(name)(container)).count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        let get = |name: &str| requests.get(name).copied().unwrap_or(0);
        let scored_cpu = get("cpu").saturating_add(unasked("cpu").saturating_mul(UNASKED_CPU_MILLI));
        let scored_memory = get("memory").saturating_add(unasked("memory").saturating_mul(UNASKED_MEMORY));
        let sidecars = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|container| api::pod::is_sidecar(container));
        let ports = spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| container.ports.iter().flatten());
        let ports = ports.filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port
                .host_ip
                .clone()
                .filter(|address| !address.is_empty() && address != "::");
            Some((
                port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                address.unwrap_or_else(|| "0.0.0.0".to_owned()),
                number,
            ))
        });
        Self {
            scored_cpu,
            scored_memory,
            ports: ports.collect(),
            requests,
        }
    }
}

/// True if two host ports conflict.
pub(super) fn conflict(a: &HostPort, b: &HostPort) -> bool {
    a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || a.1 == "0.0.0.0" || b.1 == "0.0.0.0")
}
