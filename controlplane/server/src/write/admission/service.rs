//! Services get their addresses and node ports before they are stored, and before the rules of the
//! kind are asked, as upstream does it (`pkg/registry/core/service/storage/alloc.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::kinds::service::{families, is_headless, needs_cluster_ip, needs_health_port, needs_node_ports};
use api::{Invalid, Object};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use store::Store;

use super::Review;
use crate::request::failure::Failure;
use crate::storage::allocation::{self, Claims, Range};
use crate::write::admission::Part;

/// Sets allocated fields, and adds the allocations to the commit.
pub(super) fn allocate(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let Some(service) = object.as_any_mut().downcast_mut::<Service>() else {
        return Ok(());
    };
    if review.part != Part::Object {
        return Ok(());
    }
    let old = review.old.and_then(|old| old.as_any().downcast_ref::<Service>());
    let old = old.and_then(|old| old.spec.as_ref());
    let held = old.map(Claims::of).unwrap_or_default();
    let metadata = service.metadata.clone();
    let name = metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &mut service.spec else { return Ok(()) };
    let store = review.context.store();
    let own: Vec<Range> = review
        .context
        .server
        .options
        .service_ranges
        .iter()
        .copied()
        .map(Range::new)
        .collect();
    let configured: Vec<&str> = own.iter().map(|range| range.family()).collect();
    let found = families::init(spec, old, &configured);
    if !found.is_empty() {
        return Err(Failure::invalid("", "Service", name, &found));
    }
    addresses(store, spec, old, &own, name)?;
    let mut ports = Ports {
        store,
        name,
        asked: Claims::of(spec).ports,
        taken: BTreeSet::new(),
    };
    if allocation::has_node_ports(spec) {
        match old {
            None => ports.of_new(spec)?,
            Some(old) => ports.of_changed(spec, old)?,
        }
    }
    if needs_health_port(spec) && old.is_none_or(|old| !needs_health_port(old)) {
        ports.of_health(spec)?;
    }
    let wanted = Claims::of(spec);
    for address in wanted.addresses.difference(&held.addresses) {
        let write = allocation::hold_address(&metadata, *address, review.context.now())?;
        review.terms.also.push(write);
    }
    for port in wanted.ports.difference(&held.ports) {
        review.terms.also.push(allocation::hold_port(&metadata, *port)?);
    }
    let dropped = Claims {
        addresses: held.addresses.difference(&wanted.addresses).copied().collect(),
        ports: held.ports.difference(&wanted.ports).copied().collect(),
    };
    review.terms.also.extend(allocation::release(store, &dropped));
    Ok(())
}

fn invalid(name: &str, found: &Invalid) -> Failure {
    Failure::invalid("", "Service", name, std::slice::from_ref(found))
}

/// Allocates the addresses that a Service lacks: all for one that had none, the second for one that
/// becomes dual-stack (`updateClusterIPs`).
fn addresses(
    store: &Store,
    spec: &mut ServiceSpec,
    old: Option<&ServiceSpec>,
    own: &[Range],
    name: &str,
) -> Result<(), Failure> {
    if !needs_cluster_ip(spec) || is_headless(spec) || families::is_left(spec, old) {
        return Ok(());
    }
    let count = |spec: &ServiceSpec| spec.ip_families.as_ref().map_or(0, Vec::len);
    let lacks = match old {
        Some(old) if is_headless(old) => return Ok(()),
        Some(old) if needs_cluster_ip(old) => count(old)..count(spec),
        Some(_) | None => 0..count(spec),
    };
    let ranges = allocation::ranges(store, own);
    for index in lacks {
        let family = spec.ip_families.as_ref().and_then(|all| all.get(index)).cloned();
        let of_family: Vec<Range> = ranges
            .iter()
            .copied()
            .filter(|range| Some(range.family()) == family.as_deref())
            .collect();
        address(store, spec, index, &of_family, name)?;
    }
    Ok(())
}

/// Claims the address that the client chose, or allocates one.
fn address(store: &Store, spec: &mut ServiceSpec, index: usize, ranges: &[Range], name: &str) -> Result<(), Failure> {
    let chosen = spec.cluster_ips.as_ref().and_then(|list| list.get(index));
    let Some(chosen) = chosen.and_then(|address| address.parse::<IpAddr>().ok()) else {
        let address = allocation::pick(store, ranges).ok_or_else(|| {
            Failure::internal(format!(
                "failed to allocate a serviceIP for Service {name:?}: range is full"
            ))
        })?;
        let list = spec.cluster_ips.get_or_insert_default();
        list.truncate(index);
        list.push(address.to_string());
        if index == 0 {
            spec.cluster_ip = Some(address.to_string());
        }
        return Ok(());
    };
    let because = if !ranges.iter().any(|range| range.has(chosen)) {
        "the provided network does not match the current range"
    } else if allocation::address_key(chosen).is_some_and(|key| store.get(&key).is_some()) {
        "provided IP is already allocated"
    } else {
        return Ok(());
    };
    let list = serde_json::to_string(&spec.cluster_ips).unwrap_or_default();
    let detail = format!("failed to allocate IP {chosen}: {because}");
    Err(invalid(name, &Invalid::rendered("spec.clusterIPs", list, detail)))
}

/// Node ports that are allocated to one Service at once.
struct Ports<'a> {
    store: &'a Store,
    name: &'a str,
    /// Node ports that the spec names.
    asked: BTreeSet<i32>,
    /// Node ports that were allocated.
    taken: BTreeSet<i32>,
}

impl Ports<'_> {
    /// Takes a port that a client chose.
    fn take(&mut self, number: i32) -> Result<(), String> {
        if !allocation::NODE_PORTS.contains(&number) {
            let (first, last) = (allocation::NODE_PORTS.start(), allocation::NODE_PORTS.end());
            let range = "provided port is not in the valid range. The range of valid ports is";
            return Err(format!("{range} {first}-{last}"));
        }
        let is_taken = allocation::port_key(number).is_some_and(|key| self.store.get(&key).is_some());
        if is_taken || !self.taken.insert(number) {
            return Err("provided port is already allocated".to_owned());
        }
        Ok(())
    }

    fn take_for(&mut self, index: usize, number: i32) -> Result<(), Failure> {
        let field = format!("spec.ports[{index}].nodePort");
        self.take(number)
            .map_err(|because| invalid(self.name, &Invalid::value(field, number, because)))
    }

    fn draw(&mut self, what: &str) -> Result<i32, Failure> {
        let avoided = self.taken.union(&self.asked).copied().collect();
        let number = allocation::free_port(self.store, &avoided)
            .ok_or_else(|| Failure::internal(format!("failed to allocate a {what}: range is full")))?;
        self.taken.insert(number);
        Ok(number)
    }

    /// Ports of a new Service (`initNodePorts`): one number of a node serves the same port in
    /// several protocols.
    fn of_new(&mut self, spec: &mut ServiceSpec) -> Result<(), Failure> {
        let draws = needs_node_ports(spec);
        let mut ports = spec.ports.take().unwrap_or_default();
        let mut chosen: BTreeMap<i32, i32> = BTreeMap::new();
        for port in ports.iter().rev() {
            chosen.extend(port.node_port.map(|number| (port.port, number)));
        }
        let mut known = BTreeMap::new();
        for (index, port) in ports.iter_mut().enumerate() {
            match (port.node_port, known.get(&port.port).copied()) {
                (None, _) if !draws => {}
                (None, Some(shared)) => port.node_port = Some(shared),
                (Some(number), Some(shared)) if number == shared => {}
                (Some(number), Some(_)) => self.take_for(index, number)?,
                (_, None) => {
                    let number = match chosen.get(&port.port) {
                        Some(number) => self.take_for(index, *number).map(|()| *number)?,
                        None => self.draw("nodePort")?,
                    };
                    port.node_port = Some(number);
                    known.insert(port.port, number);
                }
            }
        }
        spec.ports = Some(ports).filter(|ports| !ports.is_empty());
        Ok(())
    }

    /// Ports of a Service that is changed (`updateNodePorts`).
    fn of_changed(&mut self, spec: &mut ServiceSpec, old: &ServiceSpec) -> Result<(), Failure> {
        let draws = needs_node_ports(spec);
        let number = |port: &ServicePort| port.node_port;
        let before: BTreeSet<i32> = old.ports.iter().flatten().filter_map(number).collect();
        let mut seen = BTreeSet::new();
        for (index, port) in spec.ports.iter_mut().flatten().enumerate() {
            let number = match port.node_port {
                None if !draws => continue,
                None => self.draw("nodePort")?,
                Some(number) if before.contains(&number) || self.taken.contains(&number) => number,
                Some(number) => self.take_for(index, number).map(|()| number)?,
            };
            port.node_port = Some(number);
            let protocol = port.protocol.clone().unwrap_or_default();
            let message = format!("duplicate nodePort: {{{protocol} {number}}}");
            if !seen.insert((protocol, number)) {
                return Err(Failure::Unexpected { message });
            }
        }
        Ok(())
    }

    /// The port for checks of a node's health. Upstream speaks of it as of a fault of its own.
    fn of_health(&mut self, spec: &mut ServiceSpec) -> Result<(), Failure> {
        match spec.health_check_node_port.filter(|number| *number != 0) {
            None => spec.health_check_node_port = Some(self.draw("HealthCheck NodePort 0")?),
            Some(number) => self.take(number).map_err(|because| {
                Failure::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {number}: {because}"
                ))
            })?,
        }
        Ok(())
    }
}

/// Writes to other objects in the commit that removes an object.
pub(crate) fn farewell(store: &Store, object: &dyn Object) -> Vec<store::Write> {
    object
        .as_any()
        .downcast_ref::<Service>()
        .map(|service| allocation::release_all(store, service))
        .unwrap_or_default()
}
