//! Addresses of the pool: one of each family of a Service.
//!
//! Assigned addresses stay; then each Service without an address takes one, the oldest first.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};

use super::{announced, families, given, is_balanced, turn};

/// The Service's addresses, of the families that have a free one. Without any, tells why.
pub(super) fn addresses(
    service: &Service,
    all: &[Arc<Service>],
    nodes: &[Arc<Node>],
    ranges: &[(IpAddr, IpAddr)],
) -> Result<Vec<IpAddr>, String> {
    let mut families = families(service);
    if let Some(wanted) = requested(service) {
        let address: Option<IpAddr> = wanted.parse().ok();
        let known = address.filter(|address| families.contains(&address.is_ipv6()) && is_in(*address, ranges));
        let known = known.ok_or_else(|| format!("the address {wanted} is none of the pool"))?;
        families = vec![known.is_ipv6()];
    }
    let (mut found, mut refusal) = (Vec::new(), None);
    for v6 in families {
        match of_family(service, all, nodes, ranges, v6) {
            Ok(address) => found.push(address),
            Err(because) => refusal = refusal.or(Some(because)),
        }
    }
    refusal.filter(|_| found.is_empty()).map_or(Ok(found), Err)
}

/// The Service's address of a family.
fn of_family(
    service: &Service,
    all: &[Arc<Service>],
    nodes: &[Arc<Node>],
    ranges: &[(IpAddr, IpAddr)],
    v6: bool,
) -> Result<IpAddr, String> {
    let mut waiting: Vec<&Service> = all
        .iter()
        .map(|other| &**other)
        .filter(|other| is_balanced(other) && families(other).contains(&v6))
        .collect();
    waiting.sort_by_cached_key(|other| turn(other));
    let is_own = |other: &Service| other.metadata.uid == service.metadata.uid;
    let mut taken = BTreeSet::new();
    // If two Services got one address at once, the younger one gives it back.
    let mut own = None;
    waiting.retain(|other| {
        let kept = kept(other, ranges, v6).filter(|address| taken.insert(*address));
        if is_own(other) {
            own = kept;
        }
        kept.is_none()
    });
    if let Some(address) = own {
        return Ok(address);
    }
    taken.extend(nodes.iter().flat_map(|node| announced::reserved(node)));
    for other in waiting {
        let found = choose(other, ranges, &taken, v6);
        if is_own(other) {
            return found;
        }
        taken.extend(found.ok());
    }
    Err("the service is not known yet".to_owned())
}

fn is_in(address: IpAddr, ranges: &[(IpAddr, IpAddr)]) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&address))
}

/// The Service's address of a family from the pool, if it may keep it.
fn kept(service: &Service, ranges: &[(IpAddr, IpAddr)], v6: bool) -> Option<IpAddr> {
    let wanted = requested(service);
    let mut given = given(service).into_iter().filter(|address| address.is_ipv6() == v6);
    given.find(|address| is_in(*address, ranges) && wanted.is_none_or(|wanted| wanted.parse() == Ok(*address)))
}

/// `spec.loadBalancerIP`
fn requested(service: &Service) -> Option<&str> {
    let wanted = service.spec.as_ref()?.load_balancer_ip.as_deref()?;
    (!wanted.is_empty()).then_some(wanted)
}

/// The requested address, else the first one that is free.
fn choose(
    service: &Service,
    ranges: &[(IpAddr, IpAddr)],
    taken: &BTreeSet<IpAddr>,
    v6: bool,
) -> Result<IpAddr, String> {
    if let Some(wanted) = requested(service) {
        let address: Option<IpAddr> = wanted.parse().ok();
        let free = address.filter(|address| !taken.contains(address));
        return free.ok_or_else(|| format!("the address {wanted} is taken"));
    }
    let ranges = ranges.iter().filter(|(first, _)| first.is_ipv6() == v6);
    for (first, last) in ranges {
        // Takes one candidate more than taken addresses: one of them must be free, if any is.
        let mut candidates = after(*first, *last).take(taken.len() + 1);
        if let Some(address) = candidates.find(|address| !taken.contains(address)) {
            return Ok(address);
        }
    }
    Err("no address of the pool is free".to_owned())
}

/// Addresses from the first to the last.
fn after(first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> {
    std::iter::successors(Some(first), move |address| {
        let next = match address {
            IpAddr::V4(address) => IpAddr::V4(address.to_bits().checked_add(1)?.into()),
            IpAddr::V6(address) => IpAddr::V6(address.to_bits().checked_add(1)?.into()),
        };
        (next <= last).then_some(next)
    })
}
