//! Services get their addresses and node ports before they are stored.

use std::net::Ipv4Addr;

use api::kinds::service::{needs_cluster_ip, needs_health_port, needs_node_ports};
use api::{Invalid, Object};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use store::Store;

use super::Review;
use crate::failure::Failure;
use crate::services::{self, Claims, Range};
use crate::verbs::amend::Part;

/// Fills in what is handed out, and makes the commit hold it.
pub(super) fn allocate(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let Some(service) = object.as_any_mut().downcast_mut::<Service>() else {
        return Ok(());
    };
    if review.part != Part::Object {
        return Ok(());
    }
    let old = review.old.and_then(|old| old.as_any().downcast_ref::<Service>());
    let held = old
        .and_then(|old| old.spec.as_ref())
        .map(Claims::of)
        .unwrap_or_default();
    let metadata = service.metadata.clone();
    let Some(spec) = &mut service.spec else { return Ok(()) };
    let store = review.context.store();
    let own = Range::new(review.context.server.options.service_range);
    let ranges = services::ranges(store, own);
    check(store, spec, &held, &ranges).map_err(|found| invalid(metadata.name.as_deref(), &found))?;
    check_health(store, spec, &held)?;
    if services::lacks(spec) {
        fill_address(store, spec, &ranges)?;
        fill_ports(store, spec)?;
    }
    let wanted = Claims::of(spec);
    for address in wanted.addresses.difference(&held.addresses) {
        let write = services::hold_address(&metadata, *address, review.context.now())?;
        review.terms.also.push(write);
    }
    for port in wanted.ports.difference(&held.ports) {
        review.terms.also.push(services::hold_port(&metadata, *port)?);
    }
    let dropped = Claims {
        addresses: held.addresses.difference(&wanted.addresses).copied().collect(),
        ports: held.ports.difference(&wanted.ports).copied().collect(),
    };
    review.terms.also.extend(services::release(store, &dropped));
    Ok(())
}

fn invalid(name: Option<&str>, found: &Invalid) -> Failure {
    let name = name.unwrap_or_default();
    Failure::invalid("", "Service", name, std::slice::from_ref(found))
}

/// What a client chose must be there to be had.
fn check(store: &Store, spec: &ServiceSpec, held: &Claims, ranges: &[Range]) -> Result<(), Invalid> {
    let chosen = Claims::of(spec);
    let taken = |key: Option<store::Key>| key.is_some_and(|key| store.get(&key).is_some());
    for address in chosen.addresses.difference(&held.addresses) {
        let because = if !ranges.iter().any(|range| range.has(*address)) {
            "the provided network does not match the current range"
        } else if taken(services::address_key(*address)) {
            "provided IP is already allocated"
        } else {
            continue;
        };
        let list = serde_json::to_string(&spec.cluster_ips).unwrap_or_default();
        let detail = format!("failed to allocate IP {address}: {because}");
        return Err(Invalid::rendered("spec.clusterIPs", list, detail));
    }
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let Some(number) = port.node_port.filter(|number| !held.ports.contains(number)) else {
            continue;
        };
        if chosen.ports.contains(&number) && taken(services::port_key(number)) {
            let field = format!("spec.ports[{index}].nodePort");
            return Err(Invalid::value(field, number, "provided port is already allocated"));
        }
    }
    Ok(())
}

/// The port that a client chose for checks of a node's health must be to be had too. Upstream says so as of a fault of its own.
fn check_health(store: &Store, spec: &ServiceSpec, held: &Claims) -> Result<(), Failure> {
    let chosen = spec
        .health_check_node_port
        .filter(|number| *number != 0 && needs_health_port(spec));
    let Some(number) = chosen.filter(|number| !held.ports.contains(number)) else {
        return Ok(());
    };
    let because = if !services::NODE_PORTS.contains(&number) {
        let (first, last) = (services::NODE_PORTS.start(), services::NODE_PORTS.end());
        format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
    } else if services::port_key(number).is_some_and(|key| store.get(&key).is_some()) {
        "provided port is already allocated".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::internal(format!(
        "failed to allocate requested HealthCheck NodePort {number}: {because}"
    )))
}

fn fill_address(store: &Store, spec: &mut ServiceSpec, ranges: &[Range]) -> Result<(), Failure> {
    let unset = spec.cluster_ip.as_ref().is_none_or(String::is_empty);
    let listed = spec.cluster_ips.as_ref().is_some_and(|list| !list.is_empty());
    // IPv6 alone cannot be had: validation says so.
    let first = spec.ip_families.as_ref().and_then(|families| families.first());
    if !needs_cluster_ip(spec) || !unset || listed || first.is_some_and(|family| family != "IPv4") {
        return Ok(());
    }
    let address: Ipv4Addr = services::pick(store, ranges)
        .ok_or_else(|| Failure::internal("failed to allocate a serviceIP: range is full"))?;
    spec.cluster_ip = Some(address.to_string());
    spec.cluster_ips = Some(vec![address.to_string()]);
    Ok(())
}

fn fill_ports(store: &Store, spec: &mut ServiceSpec) -> Result<(), Failure> {
    let full = || Failure::internal("failed to allocate a nodePort: range is full");
    let mut claims = Claims::of(spec);
    if needs_node_ports(spec) {
        let mut ports = spec.ports.take().unwrap_or_default();
        for index in 0..ports.len() {
            let Some((number, protocol)) = ports
                .get(index)
                .filter(|port| port.node_port.is_none())
                .map(|port| (port.port, port.protocol.clone()))
            else {
                continue;
            };
            // One number of a node serves the same port in several protocols.
            let shared = ports
                .iter()
                .filter(|other| other.port == number && other.protocol != protocol)
                .find_map(|other| other.node_port);
            let chosen = shared
                .or_else(|| services::free_port(store, &claims))
                .ok_or_else(full)?;
            claims.ports.insert(chosen);
            if let Some(port) = ports.get_mut(index) {
                port.node_port = Some(chosen);
            }
        }
        spec.ports = Some(ports).filter(|ports| !ports.is_empty());
    }
    if needs_health_port(spec) && spec.health_check_node_port.unwrap_or(0) == 0 {
        spec.health_check_node_port = Some(services::free_port(store, &claims).ok_or_else(full)?);
    }
    Ok(())
}

/// Changes of other objects that go with the end of an object.
pub(crate) fn farewell(store: &Store, object: &dyn Object) -> Vec<store::Write> {
    object
        .as_any()
        .downcast_ref::<Service>()
        .map(|service| services::release_all(store, service))
        .unwrap_or_default()
}
