//! Hints of Services with the annotation `service.kubernetes.io/topology-mode: Auto`: each zone gets
//! endpoints by its share of the nodes' CPU (`staging/src/k8s.io/endpointslice/topologycache`).

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};

/// Annotations that take precedence over `trafficDistribution`, the older one first.
const MODES: [&str; 2] = [
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// Labels of nodes that do not count.
const EXCLUDED: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

const ZONE: &str = "topology.kubernetes.io/zone";

/// The node's zone, empty if it is in none.
pub fn zone(node: &Node) -> &str {
    let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE));
    zone.map_or("", String::as_str)
}

/// True if the Service's hints depend on the capacity of zones.
pub fn is_topology_aware(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| MODES.iter().find_map(|name| all.get(*name)));
    mode.is_some_and(|mode| matches!(mode.as_str(), "Auto" | "auto"))
}

/// Zone and CPU of a node, in thousandths; `None` if it does not count.
pub fn share(node: &Node) -> Option<(&str, i64)> {
    let labels = node.metadata.labels.as_ref();
    let is_excluded = labels.is_some_and(|labels| EXCLUDED.iter().any(|name| labels.contains_key(*name)));
    let status = node.status.as_ref()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_ready = |known: &&NodeCondition| known.type_ == "Ready" && known.status == "True";
    conditions.iter().find(is_ready).filter(|_| !is_excluded)?;
    let cpu = status.allocatable.as_ref().and_then(|all| all.get("cpu"));
    Some((zone(node), cpu.map_or(0, |cpu| Quantity::of(cpu).milli())))
}

/// CPU of each zone; empty if it is not known of all nodes or there are less than two zones.
pub(super) fn capacity<'a>(shares: impl Iterator<Item = (&'a str, i64)>) -> BTreeMap<&'a str, i128> {
    let mut zones = BTreeMap::new();
    for (zone, cpu) in shares {
        if zone.is_empty() || cpu <= 0 {
            return BTreeMap::new();
        }
        *zones.entry(zone).or_default() += i128::from(cpu);
    }
    if zones.len() < 2 { BTreeMap::new() } else { zones }
}

/// Gives hints to the ready endpoints of one family, or to none and returns the reason.
pub(super) fn hint(endpoints: &mut [&mut Endpoint], zones: &BTreeMap<&str, i128>) -> Result<(), String> {
    if zones.is_empty() {
        return Err(
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes".to_owned(),
        );
    }
    let is_ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().and_then(|known| known.ready) == Some(true);
    let mut ready: Vec<&mut Endpoint> = endpoints
        .iter_mut()
        .map(|endpoint| &mut **endpoint)
        .filter(|endpoint| is_ready(endpoint))
        .collect();
    let count: i128 = ready.iter().map(|_| 1).sum();
    let counts = format!("({} endpoints, {} zones)", ready.len(), zones.len());
    if zones.len() > ready.len() {
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    // All in units of an endpoint divided by `total`.
    let total: i128 = zones.values().sum();
    // No endpoint may get more than 20 % above its share.
    let least = |cpu: &i128| (cpu * count * 5 + total * 6 - 1) / (total * 6);
    if zones.values().map(least).sum::<i128>() > count {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {counts}"
        ));
    }
    if ready.iter().any(|endpoint| endpoint.zone.is_none()) {
        return Err("One or more endpoints do not have a zone specified".to_owned());
    }
    let have = |zone: &str| -> i128 {
        let own = ready.iter().filter(|endpoint| endpoint.zone.as_deref() == Some(zone));
        own.map(|_| total).sum()
    };
    let surplus = |(zone, cpu): (&&str, &i128)| {
        let wanted = (cpu * count).max(least(cpu) * total);
        ((*zone).to_owned(), have(zone) - wanted)
    };
    let mut moves = moves(zones.iter().map(surplus).collect(), total);
    for endpoint in &mut ready {
        let own = endpoint.zone.clone().unwrap_or_default();
        let to = moves.iter().position(|(from, _)| *from == own);
        let name = to.map_or(own, |at| moves.remove(at).1);
        endpoint.hints = Some(EndpointHints {
            for_zones: Some(vec![ForZone { name }]),
            ..EndpointHints::default()
        });
    }
    Ok(())
}

/// Pairs of zones: an endpoint of the first one is to serve the second one. An endpoint is `one`.
fn moves(mut surplus: BTreeMap<String, i128>, one: i128) -> Vec<(String, String)> {
    let mut moves = Vec::new();
    loop {
        let most = surplus.iter().rev().max_by_key(|(_, surplus)| **surplus);
        let least = surplus.iter().min_by_key(|(_, surplus)| **surplus);
        let (Some((from, gives)), Some((to, takes))) = (most, least) else {
            return moves;
        };
        let (gives, takes) = (*gives, -*takes);
        if (gives < one && takes < one) || gives * 2 < one || takes * 2 < one {
            return moves;
        }
        let (from, to) = (from.clone(), to.clone());
        for (zone, change) in [(&from, -one), (&to, one)] {
            surplus.entry(zone.clone()).and_modify(|surplus| *surplus += change);
        }
        moves.push((from, to));
    }
}
