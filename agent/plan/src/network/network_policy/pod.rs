//! Trimmed copies of the pods that network policies may affect.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use crate::network::proxy::Protocol;
use crate::pod::pods;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A named port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// `name`
    pub name: Box<str>,
    /// `protocol`
    pub protocol: Protocol,
    /// `containerPort`
    pub port: u16,
}

/// A pod that policies may affect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.labels`
    pub labels: Labels,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its named ports.
    pub ports: Box<[NamedPort]>,
    /// True if the pod is on this node.
    pub here: bool,
}

impl Pod {
    /// `None` for a pod that has ended or is on the host network, which policies do not affect.
    pub fn new(pod: &core::Pod, node: &str) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        if pods::host_network(spec) || pods::terminal_phase(pod).is_some() {
            return None;
        }
        let status = pod.status.as_ref();
        let told = status.into_iter().flat_map(|status| status.pod_ips.iter().flatten());
        let containers = pods::main_containers(pod).iter().chain(pods::init_containers(pod));
        let ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter_map(|port| {
            Some(NamedPort {
                name: port.name.as_deref()?.into(),
                protocol: Protocol::new(port.protocol.as_deref()),
                port: u16::try_from(port.container_port).ok()?,
            })
        });
        Some(Self {
            namespace: pods::namespace(pod).into(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            addresses: told.filter_map(|told| told.ip.parse().ok()).collect(),
            ports: named.collect(),
            here: spec.node_name.as_deref() == Some(node),
        })
    }

    pub(super) fn ports_named(&self, protocol: Protocol, name: &str) -> impl Iterator<Item = u16> {
        let named = self.ports.iter();
        let named = named.filter(move |port| port.protocol == protocol && *port.name == *name);
        named.map(|port| port.port)
    }
}
