//! Allocation for Services: addresses of the service ranges and node ports.
//!
//! Every allocation is an entry of the store: an address is an `IPAddress` of its name, a port an
//! entry that no kind shows. Both are created and removed in the commit that stores the Service, so
//! two Services never hold the same, and no allocation leaks when the process crashes.

mod range;
mod repair;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub(crate) use api::kinds::service::validation::NODE_PORTS;
use api::kinds::service::{needs_cluster_ip, needs_health_port};
use api::{Registration, find};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use store::{Attributes, Entry, Key, Store, Value, Write};
use uuid::Uuid;

use crate::request::failure::Failure;
use crate::request::object;
use crate::storage;

pub(crate) use range::{Range, pick, ranges};
pub(crate) use repair::{keep, repair};

/// Number of node ports at the start of the range that are kept for explicit requests until no
/// others are left, as upstream does.
const ASKED_FOR: i32 = 86;

/// Label of the addresses that are allocated here.
const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// Addresses and ports that a Service holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) addresses: BTreeSet<IpAddr>,
    pub(crate) ports: BTreeSet<i32>,
}

impl Claims {
    /// Claims of a spec. Ignores invalid addresses and ports out of range: validation rejects them.
    pub(crate) fn of(spec: &ServiceSpec) -> Self {
        let addresses = spec.cluster_ips.iter().flatten().filter(|_| needs_cluster_ip(spec));
        let ports = spec.ports.iter().flatten().filter(|_| has_node_ports(spec));
        let ports = ports.filter_map(|port| port.node_port);
        let health = spec.health_check_node_port.filter(|_| needs_health_port(spec));
        Self {
            addresses: addresses.filter_map(|address| address.parse().ok()).collect(),
            ports: ports.chain(health).filter(|port| NODE_PORTS.contains(port)).collect(),
        }
    }
}

/// The row of `IPAddress`.
fn row() -> Result<&'static Registration, Failure> {
    find("networking.k8s.io", "v1", "ipaddresses").ok_or_else(|| Failure::internal("IPAddress is not served"))
}

/// Key of an address.
pub(crate) fn address_key(address: IpAddr) -> Option<Key> {
    storage::key(row().ok()?, "", &address.to_string())
}

/// Key of a port: outside the kinds, under a group that none of them can have.
pub(crate) fn port_key(port: i32) -> Option<Key> {
    Key::new("skiff", "nodeports", "", &port.to_string()).ok()
}

/// Holds an address for a Service.
pub(crate) fn hold_address(service: &ObjectMeta, address: IpAddr, now: Timestamp) -> Result<Write, Failure> {
    let labels = [
        (
            "ipaddress.kubernetes.io/ip-family",
            if address.is_ipv6() { "IPv6" } else { "IPv4" },
        ),
        MANAGED_BY,
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut held = IPAddress {
        metadata: ObjectMeta {
            name: Some(address.to_string()),
            uid: Some(Uuid::new_v4().to_string()),
            creation_timestamp: Some(Time(now)),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                group: None,
                resource: "services".to_owned(),
                namespace: service.namespace.clone(),
                name: service.name.clone().unwrap_or_default(),
            },
        },
    };
    let (value, attributes) = object::encode(row()?, &mut held, "")?;
    Ok(Write::Create {
        key: address_key(address).ok_or_else(|| Failure::internal("an address is no key"))?,
        value,
        attributes,
        within: None,
    })
}

/// Holds a port for a Service.
pub(crate) fn hold_port(service: &ObjectMeta, port: i32) -> Result<Write, Failure> {
    let owner = json!({"namespace": service.namespace, "name": service.name});
    let held = json!({"metadata": {"name": port.to_string(), "resourceVersion": ""}, "service": owner});
    Ok(Write::Create {
        key: port_key(port).ok_or_else(|| Failure::internal("a port is no key"))?,
        value: Value::parse(held.to_string().into_bytes()).map_err(Failure::internal)?,
        attributes: Attributes::default(),
        within: None,
    })
}

/// Releases the claims that are still held.
pub(crate) fn release(store: &Store, claims: &Claims) -> Vec<Write> {
    let addresses = claims.addresses.iter().filter_map(|address| address_key(*address));
    let ports = claims.ports.iter().filter_map(|port| port_key(*port));
    let held = addresses.chain(ports).filter_map(|key| store.get(&key));
    held.filter_map(|entry| removal(&entry)).collect()
}

fn removal(entry: &Entry) -> Option<Write> {
    Some(Write::Delete {
        key: entry.key.clone(),
        expected: Some(entry.revision),
        last: Value::parse(entry.bytes.to_vec()).ok()?,
    })
}

/// Releases all claims of a removed Service.
pub(crate) fn release_all(store: &Store, service: &Service) -> Vec<Write> {
    let claims = service.spec.as_ref().map(Claims::of).unwrap_or_default();
    release(store, &claims)
}

/// Port that is free and not in `taken`.
pub(crate) fn free_port(store: &Store, taken: &BTreeSet<i32>) -> Option<i32> {
    let first = NODE_PORTS.start() + ASKED_FOR;
    let count = NODE_PORTS.end() - first + 1;
    let start = i32::from(rand::random::<u16>()) % count;
    let drawn = (0..count).map(|step| first + (start + step) % count);
    let mut all = drawn.chain(*NODE_PORTS.start()..first);
    all.find(|port| !taken.contains(port) && port_key(*port).is_some_and(|key| store.get(&key).is_none()))
}

/// True if the Service can have node ports.
pub(crate) fn has_node_ports(spec: &ServiceSpec) -> bool {
    matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
}
