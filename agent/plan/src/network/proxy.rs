//! Service proxying: Services and EndpointSlices become elements of the kernel's maps.
//!
//! [`Proxy`] keeps each Service's elements and returns the few that differ after a change. The
//! network crate's `services` explains the maps.

mod elements;
mod object;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use elements::{Address, Elements};
pub use elements::{Change, DROP, Element, GROUP, Key, REFUSE, Value, flags, slots};
pub use object::{Details, Endpoint, External, Name, Place, Port, Protocol, Service, Slice, SlicePort, name};

/// Maximum number of Service ports that the group's bits in a mark can tell apart: each has a group
/// of all its endpoints and one of the node's own.
const MOST_PORTS: u32 = 1 << 19;

/// The node that the proxy runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name, which endpoints and their hints refer to.
    pub name: String,
    /// `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the API server and the agent: Services never get these as external addresses,
    /// whatever their `externalIPs` (CVE-2020-8554).
    pub reserved: BTreeSet<(IpAddr, u16)>,
}

/// A Service with its EndpointSlices, as the API has them now.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// `None` when it was deleted.
    pub service: Option<Arc<Service>>,
    /// Its EndpointSlices, in the order of their names.
    pub slices: Arc<[Arc<Slice>]>,
}

/// A Service that is proxied.
#[derive(Debug)]
struct Known {
    service: Arc<Service>,
    slices: Arc<[Arc<Slice>]>,
    /// The number of each port.
    numbers: Box<[(Protocol, u16, u32)]>,
}

impl Known {
    /// Returns the slices of one family that proxies use.
    fn slices(&self, v6: bool) -> impl Iterator<Item = &Arc<Slice>> {
        let used = move |slice: &&Arc<Slice>| slice.v6 == v6 && !slice.headless;
        self.slices.iter().filter(used)
    }
}

/// Services that claim an external address: the oldest one gets it.
type Claims = BTreeMap<Address, BTreeSet<(i64, Name)>>;

/// Work that follows from a change.
#[derive(Debug, Default)]
pub struct Update {
    /// The elements that differ, removals first.
    pub changes: Vec<Change>,
    /// Valid destinations of datagrams, if they have changed.
    pub datagrams: Option<Datagrams>,
}

/// Number of a Service's ready endpoints on this node, for the health checks of load balancers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: Name,
    /// Ready endpoints of the node.
    pub endpoints: usize,
}

/// The state of the proxy.
#[derive(Debug, Default)]
pub struct Proxy {
    node: Node,
    known: BTreeMap<Name, Known>,
    claims: Claims,
    /// Services with a `healthCheckNodePort`.
    checked: BTreeSet<Name>,
    next: u32,
    freed: VecDeque<u32>,
}

impl Proxy {
    /// A proxy without Services.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }

    /// Takes the node's new state; `true` if it changes destinations of traffic, so that everything
    /// must be programmed again.
    pub fn see_node(&mut self, node: Node) -> bool {
        let differs = self.node != node;
        self.node = node;
        differs
    }

    /// Applies changed Services.
    pub fn update(&mut self, inputs: BTreeMap<Name, Input>) -> Update {
        let mut affected: BTreeSet<Name> = inputs.keys().cloned().collect();
        for (name, input) in &inputs {
            let before = self.known.get(name).map(|known| &*known.service);
            let services = before.into_iter().chain(input.service.as_deref());
            for address in services.flat_map(elements::outer) {
                let others = self.claims.get(&address).into_iter().flatten();
                affected.extend(others.map(|(_, name)| name.clone()));
            }
        }
        let mut before = self.elements(affected.iter());
        let mut datagrams = self.take_datagrams(affected.iter());
        for (name, input) in inputs {
            self.replace(name, input);
        }
        if affected.len() > self.known.len() / 2 {
            // Names that were added in order left the map's nodes half empty.
            self.known = std::mem::take(&mut self.known).into_iter().collect();
        }
        let after = self.elements(affected.iter());
        let changes = elements::difference(&mut before, &after);
        let now = self.take_datagrams(affected.iter());
        let concerned = !datagrams.is_empty() || !now.is_empty();
        datagrams.succeed(now);
        Update {
            datagrams: (concerned && !changes.is_empty()).then_some(datagrams),
            changes,
        }
    }

    /// Returns every element of the maps and sets, Service by Service.
    pub fn all(&self) -> impl Iterator<Item = (Element, Value)> + '_ {
        self.known.keys().flat_map(|name| self.elements([name].into_iter()))
    }

    /// Returns the valid destinations of datagrams to each Service.
    pub fn datagrams(&self) -> Datagrams {
        self.take_datagrams(self.known.keys())
    }

    /// Returns the number of proxied Services.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True if no Service is proxied.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the ports for the health checks of load balancers.
    pub fn health_checks(&self) -> BTreeMap<u16, HealthCheck> {
        let checked = self.checked.iter().filter_map(|name| {
            let known = self.known.get(name)?;
            let port = known.service.external.as_ref()?.health_port?;
            let v6 = known.service.cluster_ips.first()?.is_ipv6();
            let own = known
                .slices(v6)
                .flat_map(|slice| slice.endpoints.iter())
                .filter(|endpoint| endpoint.place == Place::Here && endpoint.ready);
            let own: BTreeSet<IpAddr> = own.map(|endpoint| endpoint.address).collect();
            let check = HealthCheck {
                service: name.clone(),
                endpoints: own.len(),
            };
            Some((port, check))
        });
        checked.collect()
    }

    fn elements<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Elements {
        let mut all = Elements::new();
        for name in names {
            if let Some(known) = self.known.get(name) {
                elements::contribute(&self.node, known, &|address| self.owns(name, address), &mut all);
            }
        }
        all
    }

    fn owns(&self, name: &Name, address: &Address) -> bool {
        let first = self.claims.get(address).and_then(BTreeSet::first);
        first.is_some_and(|(_, first)| first == name) && !self.node.reserved.contains(&(address.0, address.2))
    }

    fn take_datagrams<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Datagrams {
        let mut all = Datagrams::default();
        for (name, known) in names.filter_map(|name| self.known.get_key_value(name)) {
            all.learn(known, &|address| self.owns(name, address));
        }
        all
    }

    fn replace(&mut self, name: Name, input: Input) {
        let before = self.known.remove(&name);
        self.checked.remove(&name);
        if let Some(before) = &before {
            let claim = (before.service.created, name.clone());
            for address in elements::outer(&before.service) {
                if let Some(claims) = self.claims.get_mut(&address) {
                    claims.remove(&claim);
                    if claims.is_empty() {
                        self.claims.remove(&address);
                    }
                }
            }
        }
        let mut numbers = before.map(|before| before.numbers.into_vec()).unwrap_or_default();
        let service = input.service.filter(|service| service.proxied);
        let ports = service.as_ref().map(|service| &service.ports);
        let wanted = |protocol: Protocol, port: u16| {
            let mut ports = ports.into_iter().flatten();
            ports.any(|known| (known.protocol, known.port) == (protocol, port))
        };
        let freed = numbers.extract_if(.., |(protocol, port, _)| !wanted(*protocol, *port));
        self.freed.extend(freed.map(|(_, _, number)| number));
        let Some(service) = service else { return };
        numbers.reserve_exact(service.ports.len().saturating_sub(numbers.len()));
        for port in &service.ports {
            let known = |number: &(Protocol, u16, u32)| (number.0, number.1) == (port.protocol, port.port);
            if !numbers.iter().any(known)
                && let Some(number) = self.number()
            {
                numbers.push((port.protocol, port.port, number));
            }
        }
        for address in elements::outer(&service) {
            let claims = self.claims.entry(address).or_default();
            claims.insert((service.created, name.clone()));
        }
        if service
            .external
            .as_ref()
            .is_some_and(|external| external.health_port.is_some())
        {
            self.checked.insert(name.clone());
        }
        let known = Known {
            service,
            slices: input.slices,
            numbers: numbers.into(),
        };
        self.known.insert(name, known);
    }

    /// Returns an unused number. Freed numbers are reused last: the kernel may still remember their
    /// old meaning.
    fn number(&mut self) -> Option<u32> {
        if self.next < MOST_PORTS {
            self.next += 1;
            Some(self.next - 1)
        } else {
            self.freed.pop_front()
        }
    }
}

/// Valid destinations of datagrams to Services. TCP connections end by themselves, but a UDP client
/// that only sends would send to a dead endpoint forever: `pkg/proxy/conntrack/cleanup.go`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// By the Service's address and port.
    addresses: BTreeMap<(IpAddr, u16), BTreeSet<(IpAddr, u16)>>,
    /// By the node's port.
    node_ports: BTreeMap<u16, BTreeSet<(IpAddr, u16)>>,
}

impl Datagrams {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    fn learn(&mut self, known: &Known, owns: &dyn Fn(&Address) -> bool) {
        let service = &known.service;
        for port in service.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
            for v6 in service.families() {
                let endpoints = elements::endpoints(known, port, v6);
                let serving = endpoints.iter().filter(|(endpoint, _)| endpoint.serving);
                let serving: BTreeSet<_> = serving.map(|(endpoint, port)| (endpoint.address, *port)).collect();
                let outer = elements::outer(service).filter(|(_, protocol, number)| {
                    // Only those of this port.
                    (*protocol, *number) == (Protocol::Udp, port.port)
                });
                let outer = outer.filter(|address| owns(address)).map(|(address, ..)| address);
                let addresses = service.cluster_ips.iter().copied().chain(outer);
                for address in addresses.filter(|address| address.is_ipv6() == v6) {
                    self.addresses.insert((address, port.port), serving.clone());
                }
                if port.node_port != 0 {
                    self.node_ports.entry(port.node_port).or_default().extend(serving);
                }
            }
        }
    }

    /// Replaces the state by `now`. Addresses that are gone keep an empty set, so that their flows
    /// are stale.
    pub fn succeed(&mut self, now: Self) {
        self.addresses.values_mut().for_each(BTreeSet::clear);
        self.node_ports.values_mut().for_each(BTreeSet::clear);
        self.addresses.extend(now.addresses);
        self.node_ports.extend(now.node_ports);
    }

    /// True if the conntrack entry of a flow `to` a Service, answered by `from`, is stale. A flow
    /// that `leaves` has only its source translated: pods may talk to such a port of other hosts,
    /// which is no node port.
    pub fn is_stale(&self, to: (IpAddr, u16), from: (IpAddr, u16), leaves: bool) -> bool {
        let node_port = || self.node_ports.get(&to.1).filter(|_| !leaves);
        let serving = self.addresses.get(&to).or_else(node_port);
        serving.is_some_and(|serving| !serving.contains(&from))
    }
}
