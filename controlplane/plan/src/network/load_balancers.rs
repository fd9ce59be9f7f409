//! Addresses of Services of type `LoadBalancer`, for clusters without a cloud: those of the nodes,
//! or of a pool.
//!
//! Services with a `loadBalancerClass` belong to another implementation. The oldest Service chooses
//! first, as in the agents' tables, and a Service keeps the addresses that it has. A Service
//! without an address stays pending, and an event says why. One node announces an address of the
//! pool on the link (`announced`).

mod announced;
mod pool;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

pub use announced::{is_local, links};

use crate::node::node_health::is_ready;
use crate::objects::{name, target};
use crate::step::{Note, Plan, SERVICES, Severity, Step};

/// Label of nodes that are excluded from load balancers
/// (`staging/src/k8s.io/api/core/v1/well_known_labels.go`).
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Source of the addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// The addresses of all ready nodes.
    Nodes,
    /// Each Service gets an address of each of its families from these ranges (first to last).
    Pool(Vec<(IpAddr, IpAddr)>),
}

/// The text is not a valid source of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `nodes`, or ranges such as 192.0.2.0/28 or 192.0.2.10-192.0.2.20 with commas between them, not {0:?}"
)]
pub struct InvalidAddresses(String);

impl std::str::FromStr for Addresses {
    type Err = InvalidAddresses;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "nodes" {
            return Ok(Self::Nodes);
        }
        let ranges: Option<Vec<_>> = text.split(',').map(|range| read(range.trim())).collect();
        let ranges = ranges.filter(|ranges| !ranges.is_empty());
        ranges.map(Self::Pool).ok_or_else(|| InvalidAddresses(text.to_owned()))
    }
}

/// The first and the last address of `A/LENGTH`, `A-B` or `A`.
fn read(text: &str) -> Option<(IpAddr, IpAddr)> {
    if let Some((first, last)) = text.split_once('-') {
        let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
        return (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last));
    }
    if let Ok(address) = text.parse() {
        return Some((address, address));
    }
    let range: Cidr = text.parse().ok()?;
    (range.network() == range.address).then(|| range.ends())
}

/// True if a Service needs addresses.
pub fn is_balanced(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    service.metadata.deletion_timestamp.is_none()
        && spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none())
}

/// Addresses of a node for load balancing.
pub fn addresses_of(node: &Node) -> Vec<IpAddr> {
    let is_excluded = node
        .metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(EXCLUDED));
    if is_excluded || node.metadata.deletion_timestamp.is_some() || !is_ready(node) {
        return Vec::new();
    }
    announced::internal(node).collect()
}

/// Makes the plan for one Service. `all` holds all Services of the cluster, `slices` those of the
/// Service if its policy is local.
pub fn plan(
    service: &Service,
    all: &[Arc<Service>],
    nodes: &[Arc<Node>],
    slices: &[&EndpointSlice],
    from: &Addresses,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let holder = announced::holder(service);
    if !is_balanced(service) {
        let left = holder.is_some() && service.metadata.deletion_timestamp.is_none();
        plan.stage(
            left.then(|| give(service, &given(service), None, now))
                .into_iter()
                .collect(),
        );
        return plan;
    }
    let found = match from {
        Addresses::Nodes => of_nodes(service, all, nodes, slices),
        Addresses::Pool(ranges) => pool::addresses(service, all, nodes, ranges),
    };
    let (wanted, refusal) = match found {
        Ok(wanted) => (wanted, None),
        Err(because) => (Vec::new(), Some(because)),
    };
    let announcer = match from {
        Addresses::Pool(_) => announced::choose(service, &wanted, nodes.iter().map(|node| &**node), slices),
        Addresses::Nodes => None,
    };
    let mut steps = Vec::new();
    if wanted != given(service) || announcer != holder {
        steps.push(give(service, &wanted, announcer, now));
    }
    steps.extend(refusal.map(|because| {
        let message = format!("Error syncing load balancer: failed to ensure load balancer: {because}");
        Step::Event(note(service, Severity::Warning, "SyncLoadBalancerFailed", message))
    }));
    plan.stage(steps);
    plan
}

fn note(service: &Service, severity: Severity, reason: &'static str, message: String) -> Note {
    target(SERVICES, service).note(severity, reason, message)
}

fn give(service: &Service, addresses: &[IpAddr], announcer: Option<&str>, now: Timestamp) -> Step {
    let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
    let mut status = serde_json::Map::new();
    status.insert("loadBalancer".to_owned(), json!({"ingress": ingress}));
    if announcer != announced::holder(service) {
        let conditions = announced::conditions(service, announcer, now);
        status.insert("conditions".to_owned(), json!(conditions));
    }
    let (reason, message) = match announcer.filter(|_| addresses == given(service)) {
        None => ("EnsuredLoadBalancer", "Ensured load balancer".to_owned()),
        Some(node) => (
            "AnnouncedAddress",
            format!("Node {node} announces the address on its link"),
        ),
    };
    let done = note(service, Severity::Normal, reason, message);
    target(SERVICES, service)
        .merge_status(json!({
            "metadata": {"uid": service.metadata.uid, "resourceVersion": service.metadata.resource_version},
            "status": status,
        }))
        .with((!addresses.is_empty()).then_some(done))
}

/// Addresses in a Service's status.
fn given(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer
        .into_iter()
        .flat_map(|balancer| balancer.ingress.iter().flatten());
    ingress.filter_map(|own| own.ip.as_ref()?.parse().ok()).collect()
}

/// Order in which Services choose.
fn turn(service: &Service) -> impl Ord + use<> {
    let metadata = &service.metadata;
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    (
        Reverse(created.map(Reverse)),
        metadata.namespace.clone(),
        metadata.name.clone(),
    )
}

fn ports(service: &Service) -> BTreeSet<(i32, String)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .map(|port| (port.port, port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())))
        .collect()
}

fn families(service: &Service) -> Vec<bool> {
    let spec = service.spec.as_ref();
    let families = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let families: Vec<bool> = families.iter().map(|family| family == "IPv6").collect();
    if families.is_empty() { vec![false] } else { families }
}

/// All nodes serve a Service's ports, so that each port belongs to one Service. Those without an
/// endpoint drop what comes for a local Service: it has only the addresses of the others.
fn of_nodes(
    service: &Service,
    all: &[Arc<Service>],
    nodes: &[Arc<Node>],
    slices: &[&EndpointSlice],
) -> Result<Vec<IpAddr>, String> {
    let (own, order) = (ports(service), turn(service));
    let before = all.iter().filter(|other| is_balanced(other) && turn(other) < order);
    for other in before {
        if let Some((port, protocol)) = ports(other).intersection(&own).next() {
            return Err(format!(
                "port {port}/{protocol} of the nodes is that of service {}/{}",
                other.metadata.namespace.as_deref().unwrap_or_default(),
                name(&**other)
            ));
        }
    }
    let families = families(service);
    let hosts = is_local(service).then(|| announced::hosts(service, slices));
    let addresses: BTreeSet<IpAddr> = nodes
        .iter()
        .filter(|node| hosts.as_ref().is_none_or(|hosts| hosts.contains(name(&***node))))
        .flat_map(|node| addresses_of(node))
        .filter(|address| families.contains(&address.is_ipv6()))
        .collect();
    if addresses.is_empty() {
        let lacking = if hosts.is_some() {
            "no ready node has an endpoint"
        } else {
            "no node is ready"
        };
        return Err(lacking.to_owned());
    }
    Ok(addresses.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// `NAME@AGE PORT[/PROTOCOL] [has=ADDRESS[+ADDRESS]] [wants=ADDRESS] [class] [v6] [both]`
    fn service(line: &str) -> Arc<Service> {
        let mut words = line.split_whitespace();
        let (name, age) = words.next().unwrap().split_once('@').unwrap();
        let (port, protocol) = words.next().unwrap().split_once('/').unwrap();
        let mut own = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
                "creationTimestamp": format!("2026-01-01T00:00:{age}Z")},
            "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"],
                "ports": [{"port": port.parse::<i32>().unwrap(), "protocol": protocol}]},
        });
        for word in words {
            match word.split_once('=') {
                Some(("has", addresses)) => {
                    let ingress: Vec<_> = addresses.split('+').map(|ip| json!({"ip": ip})).collect();
                    own["status"] = json!({"loadBalancer": {"ingress": ingress}});
                }
                Some(("wants", address)) => own["spec"]["loadBalancerIP"] = json!(address),
                _ if word == "class" => own["spec"]["loadBalancerClass"] = json!("a.b/c"),
                _ if word == "both" => own["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]),
                _ => own["spec"]["ipFamilies"] = json!(["IPv6"]),
            }
        }
        Arc::new(serde_json::from_value(own).unwrap())
    }

    fn node(name: &str, ready: &str, addresses: &[&str]) -> Arc<Node> {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|ip| json!({"type": "InternalIP", "address": ip}))
            .collect();
        let own = json!({"metadata": {"name": name}, "status": {
            "addresses": addresses,
            "conditions": [{"type": "Ready", "status": ready}],
        }});
        Arc::new(serde_json::from_value(own).unwrap())
    }

    /// Returns the addresses of the last Service, or its event.
    fn outcome(lines: &[&str], from: &str) -> String {
        let all: Vec<_> = lines.iter().map(|line| service(line)).collect();
        let nodes = [
            node("a", "True", &["10.0.0.1", "fd00::1"]),
            node("b", "True", &["10.0.0.2"]),
            node("c", "False", &["10.0.0.3"]),
        ];
        let plan = plan(
            all.last().unwrap(),
            &all,
            &nodes,
            &[],
            &from.parse().unwrap(),
            Timestamp::UNIX_EPOCH,
        );
        let told = plan.stages.into_iter().flatten().map(|step| match step {
            Step::Patch { body, .. } => {
                let ingress = body["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap();
                let addresses = ingress.iter().map(|own| own["ip"].as_str().unwrap().to_owned());
                format!("[{}]", addresses.collect::<Vec<_>>().join(" "))
            }
            Step::Event(note) => note.message.rsplit(": ").next().unwrap().to_owned(),
            other @ (Step::Create { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_)) => other.to_string(),
        });
        told.collect::<Vec<_>>().join(", ")
    }

    const POOL: &str = "192.0.2.4/31,192.0.2.9-192.0.2.9,fd01::/127";

    #[test]
    fn services_are_given_addresses() {
        let pool = POOL;
        for (lines, from, told) in [
            (&["a@01 80/TCP"][..], "nodes", "[10.0.0.1 10.0.0.2]"),
            (&["a@01 80/TCP v6"], "nodes", "[fd00::1]"),
            (&["a@01 80/TCP class"], "nodes", ""),
            (
                &["b@01 80/TCP", "a@02 80/TCP"],
                "nodes",
                "port 80/TCP of the nodes is that of service ns/b",
            ),
            (&["b@02 80/TCP", "a@01 80/TCP"], "nodes", "[10.0.0.1 10.0.0.2]"),
            (
                &["b@01 80/UDP", "c@01 80/TCP class", "a@02 80/TCP"],
                "nodes",
                "[10.0.0.1 10.0.0.2]",
            ),
            (
                &["b@01 80/TCP", "a@02 80/TCP has=10.0.0.1"],
                "nodes",
                "[], port 80/TCP of the nodes is that of service ns/b",
            ),
            (&["a@01 80/TCP"], pool, "[192.0.2.4]"),
            (&["a@01 80/TCP v6"], pool, "[fd01::]"),
            (&["a@01 80/TCP"], "10.0.0.1-10.0.0.9", "[10.0.0.4]"),
            (&["a@01 80/TCP has=192.0.2.5"], pool, ""),
            (&["a@01 80/TCP has=192.0.2.7"], pool, "[192.0.2.4]"),
            (&["b@02 80/TCP has=192.0.2.4", "a@01 80/TCP"], pool, "[192.0.2.5]"),
            (&["b@01 80/TCP", "a@02 80/TCP"], pool, "[192.0.2.5]"),
            (
                &["b@01 80/TCP has=192.0.2.4", "a@02 80/TCP has=192.0.2.4"],
                pool,
                "[192.0.2.5]",
            ),
            (&["b@02 80/TCP has=192.0.2.4", "a@01 80/TCP has=192.0.2.4"], pool, ""),
            (&["a@01 80/TCP wants=192.0.2.9"], pool, "[192.0.2.9]"),
            (&["a@01 80/TCP has=192.0.2.4 wants=192.0.2.9"], pool, "[192.0.2.9]"),
            (
                &["a@01 80/TCP wants=192.0.2.8"],
                pool,
                "the address 192.0.2.8 is none of the pool",
            ),
            (
                &["b@02 80/TCP has=192.0.2.9", "a@01 80/TCP wants=192.0.2.9"],
                pool,
                "the address 192.0.2.9 is taken",
            ),
            (
                &[
                    "b@01 1/TCP has=192.0.2.4",
                    "c@01 1/TCP has=192.0.2.5",
                    "d@01 1/TCP has=192.0.2.9",
                    "a@02 80/TCP",
                ],
                pool,
                "no address of the pool is free",
            ),
        ] {
            assert_eq!(outcome(lines, from), told, "{lines:?} from {from}");
        }
    }

    #[test]
    fn a_local_service_has_the_addresses_of_nodes_with_endpoints() {
        let mut local = service("web@01 80/TCP");
        let spec = Arc::make_mut(&mut local).spec.as_mut().unwrap();
        spec.external_traffic_policy = Some("Local".to_owned());
        let nodes = [node("a", "True", &["10.0.0.1"]), node("b", "True", &["10.0.0.2"])];
        for (ready, expected) in [
            (true, Ok(vec![IpAddr::from([10, 0, 0, 2])])),
            (false, Err("no ready node has an endpoint".to_owned())),
        ] {
            let slice: EndpointSlice = serde_json::from_value(json!({
                "metadata": {"labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.244.0.5"], "nodeName": "b", "conditions": {"ready": ready}}],
            }))
            .unwrap();
            assert_eq!(of_nodes(&local, &[], &nodes, &[&slice]), expected, "{ready}");
        }
    }

    #[test]
    fn services_are_given_an_address_of_each_family() {
        for (lines, from, told) in [
            (&["a@01 80/TCP both"][..], POOL, "[192.0.2.4 fd01::]"),
            (&["a@01 80/TCP both"], "192.0.2.9", "[192.0.2.9]"),
            (&["a@01 80/TCP both has=192.0.2.5"], POOL, "[192.0.2.5 fd01::]"),
            (&["a@01 80/TCP both has=192.0.2.5+fd01::1"], POOL, ""),
            (&["a@01 80/TCP has=192.0.2.5+fd01::1"], POOL, "[192.0.2.5]"),
            (&["a@01 80/TCP both wants=fd01::1"], POOL, "[fd01::1]"),
            (
                &["a@01 80/TCP wants=fd01::1"],
                POOL,
                "the address fd01::1 is none of the pool",
            ),
            (&["b@01 80/TCP v6", "a@02 80/TCP both"], POOL, "[192.0.2.4 fd01::1]"),
            (
                &[
                    "b@01 80/TCP both has=192.0.2.9+fd01::",
                    "a@02 80/TCP both has=192.0.2.9+fd01::1",
                ],
                POOL,
                "[192.0.2.4 fd01::1]",
            ),
        ] {
            assert_eq!(outcome(lines, from), told, "{lines:?} from {from}");
        }
    }

    #[test]
    fn texts_that_name_no_addresses_are_refused() {
        for text in [
            "",
            "node",
            "10.0.0.1/24",
            "10.0.0.2-10.0.0.1",
            "10.0.0.0/33",
            "10.0.0.1-fd00::1",
            "10.0.0.0/24,",
        ] {
            assert!(text.parse::<Addresses>().is_err(), "{text}");
        }
        let whole = "0.0.0.0/0".parse::<Addresses>();
        assert_eq!(
            whole,
            Ok(Addresses::Pool(vec![(
                [0, 0, 0, 0].into(),
                [255, 255, 255, 255].into()
            )]))
        );
    }
}
