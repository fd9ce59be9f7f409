//! Node that announces a Service's address of the pool on its link: one at a time, another one when
//! it fails.
//!
//! It is chosen among the ready nodes on a link of that address and, with `externalTrafficPolicy:
//! Local`, among those with a ready endpoint. A condition in the Service's status names it: users
//! who may change Services must not make a node take over an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::{addresses_of, read};
use crate::network::endpoints::SERVICE_NAME;
use crate::objects::name;

/// Annotation of a Node with the ranges of its links.
const LINKS: &str = "skiff.dev/links";
/// Condition of a Service whose message is the node's name.
const CONDITION: &str = "skiff.dev/Announced";

/// Ranges of the links of a node (first to last).
pub fn links(node: &Node) -> Vec<(IpAddr, IpAddr)> {
    let told = node.metadata.annotations.as_ref().and_then(|all| all.get(LINKS));
    told.into_iter()
        .flat_map(|told| told.split(','))
        .filter_map(read)
        .collect()
}

/// Addresses that no Service may take: the node's own, and the ends of its links (network and
/// broadcast).
pub(super) fn reserved(node: &Node) -> impl Iterator<Item = IpAddr> {
    let ends = links(node).into_iter().flat_map(|(first, last)| [first, last]);
    internal(node).chain(ends)
}

/// A node's addresses.
pub(super) fn internal(node: &Node) -> impl Iterator<Item = IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = all.filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok())
}

/// True if only nodes with an endpoint serve the Service from outside.
pub fn is_local(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local")
}

/// The node that announces the Service's address now.
pub(super) fn holder(service: &Service) -> Option<&str> {
    let conditions = service.status.as_ref()?.conditions.as_deref()?;
    let own = conditions.iter().find(|condition| condition.type_ == CONDITION)?;
    (own.status == "True").then_some(own.message.as_str())
}

/// Chooses the node, among those on the links of most of the addresses: the present one while it
/// can, else one that the first address and its name decide, so that addresses spread over the
/// nodes.
pub(super) fn choose<'a>(
    service: &Service,
    addresses: &[IpAddr],
    nodes: impl Iterator<Item = &'a Node>,
    slices: &[&EndpointSlice],
) -> Option<&'a str> {
    let first = *addresses.first()?;
    let local = is_local(service).then(|| hosts(service, slices));
    let fits =
        |node: &&Node| !addresses_of(node).is_empty() && local.as_ref().is_none_or(|hosts| hosts.contains(name(*node)));
    let candidates: Vec<&Node> = nodes.filter(fits).collect();
    let most = candidates.iter().map(|node| on_links(node, addresses)).max();
    let most = most.filter(|count| *count > 0)?;
    let best = candidates.into_iter().filter(|node| on_links(node, addresses) == most);
    let candidates: Vec<&str> = best.map(name).collect();
    let holder = holder(service);
    let kept = candidates.iter().find(|name| holder == Some(**name));
    let best = candidates.iter().min_by_key(|name| weight(first, name));
    kept.or(best).copied()
}

/// Number of the addresses that are of a node's links.
fn on_links(node: &Node, addresses: &[IpAddr]) -> usize {
    let links = links(node);
    let is_on = |address: &&IpAddr| links.iter().any(|(first, last)| (first..=last).contains(address));
    addresses.iter().filter(is_on).count()
}

/// Nodes with a ready endpoint of the Service.
pub(super) fn hosts<'a>(service: &Service, slices: &[&'a EndpointSlice]) -> BTreeSet<&'a str> {
    let own = slices.iter().filter(|slice| {
        let labels = slice.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(SERVICE_NAME)).map(String::as_str) == Some(name(service))
    });
    let endpoints = own.flat_map(|slice| slice.endpoints.as_deref().unwrap_or_default());
    let ready = endpoints.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    ready.filter_map(|endpoint| endpoint.node_name.as_deref()).collect()
}

/// Rendezvous hash: FNV-1a, mixed once more for its upper bits.
fn weight(address: IpAddr, node: &str) -> u64 {
    let text = address.to_string();
    let octets = text.bytes().chain([0]).chain(node.bytes());
    let hash = octets.fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The Service's conditions with this node, or without one.
pub(super) fn conditions(service: &Service, holder: Option<&str>, now: Timestamp) -> Vec<Condition> {
    let known = service.status.as_ref().and_then(|status| status.conditions.clone());
    let mut all = known.unwrap_or_default();
    all.retain(|condition| condition.type_ != CONDITION);
    all.extend(holder.map(|node| Condition {
        type_: CONDITION.to_owned(),
        status: "True".to_owned(),
        reason: "NodeChosen".to_owned(),
        message: node.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    }));
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::network::load_balancers::plan;
    use crate::step::Step;

    const POOL: &str = "192.0.2.0/28";

    fn service(policy: &str, holder: Option<&str>) -> Service {
        let condition = holder.map(|node| {
            json!({"type": CONDITION, "status": "True", "reason": "NodeChosen", "message": node,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let other = json!({"type": "Other", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let conditions: Vec<Value> = condition.into_iter().chain([other]).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "web"},
            "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"], "externalTrafficPolicy": policy,
                "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.0"}]}, "conditions": conditions},
        }))
        .unwrap()
    }

    fn node(line: &str) -> Arc<Node> {
        let (name, rest) = line.split_once(' ').unwrap();
        let (ready, links) = rest.split_once(' ').unwrap();
        let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
        let own = json!({"metadata": {"name": name, "annotations": {LINKS: links}},
            "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]}});
        Arc::new(serde_json::from_value(own).unwrap())
    }

    /// Names of the conditions' nodes after the plan, or nothing if it leaves them as they are.
    fn planned(service: Service, nodes: &[&str], slices: &[&EndpointSlice], from: &str) -> Option<Vec<String>> {
        let nodes: Vec<_> = nodes.iter().map(|line| node(line)).collect();
        let service = Arc::new(service);
        let all = [Arc::clone(&service)];
        let from = from.parse().unwrap();
        let plan = plan(&service, &all, &nodes, slices, &from, Timestamp::UNIX_EPOCH);
        let mut steps = plan.stages.into_iter().flatten();
        let Some(Step::Patch { body, subresource, .. }) = steps.next() else {
            return None;
        };
        assert_eq!(subresource, Some("status"));
        let conditions = body["status"]["conditions"].as_array()?.iter();
        let texts = conditions.map(|own| own["message"].as_str().unwrap().to_owned());
        Some(texts.collect())
    }

    #[test]
    fn one_ready_node_on_the_link_announces_an_address_until_it_fails() {
        let a = "a True 192.0.2.0/24";
        let elsewhere = "b True 198.51.100.0/24,fd00::/64";
        let dead = "c Unknown 192.0.2.0/24";
        let told = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            planned(service("Cluster", None), &[elsewhere, dead, a], &[], POOL),
            told(&["", "a"])
        );
        assert_eq!(
            planned(service("Cluster", Some("a")), &[elsewhere, dead, a], &[], POOL),
            None
        );
        assert_eq!(
            planned(service("Cluster", Some("c")), &[elsewhere, dead, a], &[], POOL),
            told(&["", "a"])
        );
        assert_eq!(
            planned(service("Cluster", Some("c")), &[elsewhere, dead], &[], POOL),
            told(&[""])
        );
        assert_eq!(planned(service("Cluster", None), &[elsewhere, dead], &[], POOL), None);
        let mut both = service("Cluster", Some("b"));
        both.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".to_owned(), "IPv6".to_owned()]);
        let nodes = ["b True 192.0.2.0/24", "a True 192.0.2.0/24,fd00::/64"];
        let pool = "192.0.2.0/28,fd00::/124";
        assert_eq!(planned(both, &nodes, &[], pool), told(&["", "a"]));
        // Addresses of nodes are announced by the nodes themselves.
        assert_eq!(planned(service("Cluster", Some("a")), &[a], &[], "nodes"), told(&[""]));
        let mut plain = service("Cluster", Some("a"));
        plain.spec.as_mut().unwrap().type_ = Some("ClusterIP".to_owned());
        assert_eq!(planned(plain, &[a], &[], POOL), told(&[""]));
    }

    #[test]
    fn a_local_service_is_announced_where_it_has_endpoints_and_addresses_spread() {
        let nodes = ["a True 192.0.2.0/24", "b True 192.0.2.0/24", "c True 192.0.2.0/24"];
        let slice = |node: &str, ready: bool| -> EndpointSlice {
            let labels = json!({SERVICE_NAME: "web"});
            let endpoint = json!({"addresses": ["10.244.0.5"], "nodeName": node, "conditions": {"ready": ready}});
            serde_json::from_value(json!({"metadata": {"labels": labels}, "addressType": "IPv4",
                "endpoints": [endpoint]}))
            .unwrap()
        };
        let (b, c) = (slice("b", false), slice("c", true));
        let found = planned(service("Local", Some("b")), &nodes, &[&b, &c], POOL).unwrap();
        assert_eq!(found, ["", "c"]);
        let nodes: Vec<_> = nodes.iter().map(|line| node(line)).collect();
        let own = service("Cluster", None);
        let chosen: BTreeSet<&str> = (0..16)
            .filter_map(|last| {
                choose(
                    &own,
                    &[IpAddr::from([192, 0, 2, last])],
                    nodes.iter().map(|node| &**node),
                    &[],
                )
            })
            .collect();
        assert_eq!(chosen.len(), 3, "{chosen:?}");
    }
}
