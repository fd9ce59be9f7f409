//! Whom a proxied request is for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use rand::seq::IndexedRandom;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::failure::{Failure, GroupResource, Target as Named};
use crate::storage;

/// Where the request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Over TLS.
    pub(super) secure: bool,
    pub(super) behind: Behind,
}

/// Who answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The agent of a node.
    Agent { node: String },
    /// A port of a pod.
    Pod { namespace: String, name: String, port: u16 },
}

/// `NAME`, `NAME:PORT`, `SCHEME:NAME:PORT`; nothing for anything else.
fn split(id: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match *parts.as_slice() {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
        _ => return None,
    };
    (!name.is_empty()).then_some((scheme, name, port))
}

/// A stored object of the core group, or of that of endpoints.
pub(super) fn find<K: DeserializeOwned>(
    context: &Context,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Result<K, Failure> {
    let missing = || Failure::NotFound {
        target: Named {
            resource: GroupResource::new("", plural),
            name: name.to_owned(),
        },
    };
    let row = api::find("", "v1", plural).ok_or_else(missing)?;
    let key = storage::key(row, namespace, name).ok_or_else(missing)?;
    let entry = context.store().get(&key).ok_or_else(missing)?;
    serde_json::from_slice(&entry.bytes).map_err(Failure::internal)
}

impl Target {
    pub(super) fn read(context: &Context) -> Result<Self, Failure> {
        let (id, namespace) = (&context.info.name, &context.info.namespace);
        let kind = context.registration.kind.to_lowercase();
        let invalid = || Failure::bad_request(format!("invalid {kind} request {id:?}"));
        let (scheme, name, port) = split(id).ok_or_else(invalid)?;
        let behind = match kind.as_str() {
            "node" => agent(context, name, port)?,
            "pod" => {
                let pod: Pod = find(context, "pods", namespace, name)?;
                let port = if port.is_empty() {
                    first_port(&pod)
                } else {
                    port.parse().ok()
                };
                Behind::Pod {
                    namespace: namespace.clone(),
                    name: name.to_owned(),
                    port: port.filter(|port| *port > 0).ok_or_else(invalid)?,
                }
            }
            _ => endpoint(context, id, name, port)?,
        };
        let secure = scheme == "https" && !matches!(behind, Behind::Agent { .. });
        Ok(Self { secure, behind })
    }
}

/// Only the agent's own port: what else listens on a node is not the cluster's.
fn agent(context: &Context, name: &str, port: &str) -> Result<Behind, Failure> {
    let node: k8s_openapi::api::core::v1::Node = find(context, "nodes", "", name)?;
    let own = node.status.and_then(|status| status.daemon_endpoints?.kubelet_endpoint);
    let own = own.map_or(10250, |endpoint| endpoint.port);
    if port.is_empty() || port == own.to_string() {
        let node = name.to_owned();
        return Ok(Behind::Agent { node });
    }
    Err(Failure::bad_request(format!(
        "address not allowed: port {port} of node {name}"
    )))
}

fn first_port(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let first = containers.flat_map(|container| container.ports.iter().flatten()).next();
    first.map_or(Some(80), |port| u16::try_from(port.container_port).ok())
}

/// One of a service's endpoints, by the name of the port.
fn endpoint(context: &Context, id: &str, name: &str, port: &str) -> Result<Behind, Failure> {
    let namespace = &context.info.namespace;
    let service: Service = find(context, "services", namespace, name)?;
    let mut port_name = port.to_owned();
    if let Ok(number) = port.parse::<i64>() {
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let known = ports
            .filter(|own| i64::from(own.port) == number)
            .map(|own| own.name.clone())
            .next();
        let known = known.ok_or_else(|| Failure::Unavailable {
            message: format!("no service port {number} found for service {name:?}").into(),
        })?;
        port_name = known.unwrap_or_default();
    }
    let found = candidates(context, namespace, name, &port_name)?;
    let chosen = found.choose(&mut rand::rng()).cloned();
    let (pod, port) = chosen.ok_or_else(|| Failure::Unavailable {
        message: format!("no endpoints available for service {id:?}").into(),
    })?;
    Ok(Behind::Pod {
        namespace: namespace.clone(),
        name: pod,
        port,
    })
}

/// Pods and ports that are ready to serve.
fn candidates(context: &Context, namespace: &str, service: &str, port: &str) -> Result<Vec<(String, u16)>, Failure> {
    const SERVICE: &str = "kubernetes.io/service-name";
    let Some(row) = api::find("discovery.k8s.io", "v1", "endpointslices") else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in context.store().present(&storage::prefix(row, namespace)) {
        let slice: EndpointSlice = serde_json::from_slice(&entry.bytes).map_err(Failure::internal)?;
        let labels: &BTreeMap<String, String> = slice.metadata.labels.as_ref().unwrap_or(const { &BTreeMap::new() });
        if labels.get(SERVICE).is_none_or(|name| name != service) {
            continue;
        }
        let named = |own: &&EndpointPort| own.name.as_deref().unwrap_or_default() == port;
        let Some(number) = slice.ports.iter().flatten().find(named).and_then(|own| own.port) else {
            continue;
        };
        let Ok(number) = u16::try_from(number) else { continue };
        found.extend(
            slice
                .endpoints
                .iter()
                .flatten()
                .filter_map(ready_pod)
                .map(|pod| (pod, number)),
        );
    }
    Ok(found)
}

fn ready_pod(endpoint: &Endpoint) -> Option<String> {
    let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
    let pod = endpoint
        .target_ref
        .as_ref()
        .filter(|target| target.kind.as_deref() == Some("Pod"))?;
    pod.name.clone().filter(|_| ready != Some(false))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn names_are_read_with_scheme_and_port() {
        assert_eq!(split("web"), Some(("", "web", "")));
        assert_eq!(split("web:80"), Some(("", "web", "80")));
        assert_eq!(split("https:web:443"), Some(("https", "web", "443")));
        assert_eq!(split("http:web:"), Some(("http", "web", "")));
        for id in ["", ":80", "ftp:web:80", "http::80", "http:web:80:1"] {
            assert_eq!(split(id), None, "{id}");
        }
    }
}
