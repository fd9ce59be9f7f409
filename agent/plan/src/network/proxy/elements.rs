//! Elements of the kernel's maps, by Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::object::{Endpoint, Place, Port, Protocol, Service};
use super::topology::{self, Target, Uses};
use super::{Known, Node};

/// The bits of a mark that hold the group of endpoints.
pub const GROUP: u32 = 0x0fff_ff00;
/// Class of groups without endpoints: traffic is rejected.
pub const REFUSE: u8 = 0;
/// Class of groups that have endpoints only on other nodes, with the policy `Local`: traffic is
/// dropped.
pub const DROP: u8 = 255;

/// The bits of a mark above those of the group.
pub mod flags {
    /// Masquerade: replies must come back through this node.
    pub const MASQUERADE: u32 = 0x1000_0000;
    /// Traffic from outside the cluster goes to the group in the companion map.
    pub const LOCAL: u32 = 0x2000_0000;
    /// Session affinity.
    pub const AFFINITY: u32 = 0x4000_0000;
    /// Only allowed source ranges may pass.
    pub const RANGES: u32 = 0x8000_0000;
}

/// The largest class whose groups have as many slots as endpoints.
const EXACT: u32 = 240;
/// Number of slots that groups of a class have.
pub const fn slots(class: u8) -> u32 {
    let class = class as u32;
    if class <= EXACT {
        class
    } else {
        EXACT << (class - EXACT)
    }
}

/// Returns the class of groups with that number of endpoints. Above the number of classes,
/// endpoints share the slots in turns.
fn class(endpoints: usize) -> u8 {
    let enough = |class: &u8| usize::try_from(slots(*class)).is_ok_and(|slots| slots >= endpoints);
    (1..DROP).find(enough).unwrap_or(DROP - 1)
}

/// A key in a map or set of one family's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The family.
    pub v6: bool,
    /// The map and the key in it.
    pub key: Key,
}

/// An address, protocol and port of a Service.
pub(super) type Address = (IpAddr, Protocol, u16);

/// Keys of the maps and sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A cluster IP: the mark of its clients.
    Front(IpAddr, Protocol, u16),
    /// An external address: the mark.
    Outer(IpAddr, Protocol, u16),
    /// Same for external traffic when the policy is `Local`.
    OuterLocal(IpAddr, Protocol, u16),
    /// A node port: the mark.
    NodePort(Protocol, u16),
    /// Same for external traffic when the policy is `Local`.
    NodePortLocal(Protocol, u16),
    /// A cluster IP, whose other ports are rejected.
    ClusterIp(IpAddr),
    /// The endpoint in a slot of a group.
    Slot(u32, u32),
    /// An endpoint of a group that may connect to itself.
    Hairpin(u32, IpAddr),
    /// The first and last address of an allowed source range.
    Source(u32, IpAddr, IpAddr),
    /// An endpoint of a group with affinity.
    Member(u32, IpAddr, u16),
    /// Session affinity timeout of a group's clients.
    Timeout(u32),
}

/// Value at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value: an element of a set.
    Nothing,
    /// A mark: flags, group and class.
    Mark(u32),
    /// An endpoint.
    Endpoint(IpAddr, u16),
    /// A time.
    Seconds(u32),
}

/// Change of an element. Values cannot be updated in place: the old element is deleted and the new
/// one added in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The element is deleted.
    Remove(Element),
    /// The element is added.
    Add(Element, Value),
}

pub(super) type Elements = BTreeMap<Element, Value>;

/// Returns the changes from one state to another. Unchanged elements are removed from `before`.
pub(super) fn difference(before: &mut Elements, after: &Elements) -> Vec<Change> {
    let mut come = Vec::new();
    for (element, value) in after {
        if before.get(element) == Some(value) {
            before.remove(element);
        } else {
            come.push(Change::Add(*element, *value));
        }
    }
    let gone = before.keys().map(|element| Change::Remove(*element));
    gone.chain(come).collect()
}

/// External addresses of a Service, except node ports.
pub(super) fn outer(service: &Service) -> impl Iterator<Item = Address> + '_ {
    let external = service.external.iter().filter(|_| service.proxied);
    let addresses = external.flat_map(|external| external.addresses.iter().chain(&external.balancers));
    addresses.flat_map(|address| {
        let ports = service.ports.iter();
        ports.map(|port| (*address, port.protocol, port.port))
    })
}

/// Returns the endpoints of a port without duplicates. Of two that differ, one that does not
/// terminate is kept: a pod may have the address of one that has ended and is not yet deleted
/// (`pkg/proxy/endpointslicecache.go`). Of two such, the ready one is kept.
pub(super) fn endpoints<'a>(known: &'a Known, port: &Port, v6: bool) -> Vec<Target<'a>> {
    let rank = |endpoint: &Endpoint| (!endpoint.terminating, endpoint.ready);
    let mut all: BTreeMap<(IpAddr, u16), Target<'a>> = BTreeMap::new();
    for slice in known.slices(v6) {
        let numbers = slice.ports.iter();
        for own in numbers.filter(|own| own.name == port.name && own.protocol == port.protocol) {
            for endpoint in &slice.endpoints {
                let target = all.entry((endpoint.address, own.port)).or_insert((endpoint, own.port));
                if rank(endpoint) > rank(target.0) {
                    *target = (endpoint, own.port);
                }
            }
        }
    }
    all.into_values().collect()
}

/// Adds the elements of a Service. `owns` tells whether an external address belongs to it.
pub(super) fn contribute(node: &Node, known: &Known, owns: &dyn Fn(&Address) -> bool, elements: &mut Elements) {
    for port in &known.service.ports {
        let number = known
            .numbers
            .iter()
            .find(|of| (of.0, of.1) == (port.protocol, port.port));
        let Some((_, _, number)) = number else { continue };
        for v6 in known.service.families() {
            let mut contribution = Contribution {
                node,
                service: &known.service,
                port,
                v6,
                cluster: Group::new(*number << 1),
                local: Group::new(*number << 1 | 1),
                any: false,
                elements,
            };
            contribution.add(&endpoints(known, port, v6), owns);
        }
    }
}

/// A group of endpoints.
#[derive(Clone, Copy)]
struct Group {
    /// Its bits in a mark.
    bits: u32,
    class: u8,
}

impl Group {
    const fn new(number: u32) -> Self {
        Self {
            bits: number << 8 & GROUP,
            class: REFUSE,
        }
    }

    const fn mark(self, flags: u32) -> u32 {
        self.bits | self.class as u32 | flags
    }
}

/// One port of a Service in one IP family.
struct Contribution<'a> {
    node: &'a Node,
    service: &'a Service,
    port: &'a Port,
    v6: bool,
    cluster: Group,
    local: Group,
    /// True if there is any endpoint.
    any: bool,
    elements: &'a mut Elements,
}

impl Contribution<'_> {
    fn add(&mut self, endpoints: &[Target<'_>], owns: &dyn Fn(&Address) -> bool) {
        let (external, local) = (self.service.is_external(), self.service.external_local());
        let uses = Uses {
            cluster: !self.service.internal_local || external,
            local: self.service.internal_local || (external && local),
        };
        let chosen = topology::choose(endpoints, uses, self.node);
        self.any = chosen.any;
        self.cluster = self.fill(self.cluster, &chosen.cluster);
        self.local = self.fill(self.local, &chosen.local);
        self.add_front();
        self.add_outer(owns);
        self.add_node_port();
    }

    fn put(&mut self, key: Key, value: Value) {
        self.elements.insert(Element { v6: self.v6, key }, value);
    }

    /// Adds the endpoints of a group.
    fn fill(&mut self, group: Group, endpoints: &[Target<'_>]) -> Group {
        if endpoints.is_empty() {
            return group;
        }
        let class = class(endpoints.len());
        for (slot, (endpoint, port)) in (0..slots(class)).zip(endpoints.iter().cycle()) {
            self.put(Key::Slot(group.bits, slot), Value::Endpoint(endpoint.address, *port));
        }
        for (endpoint, port) in endpoints {
            if endpoint.place != Place::Elsewhere {
                self.put(Key::Hairpin(group.bits, endpoint.address), Value::Nothing);
            }
            if self.service.affinity.is_some() {
                self.put(Key::Member(group.bits, endpoint.address, *port), Value::Nothing);
            }
        }
        if let Some(seconds) = self.service.affinity {
            self.put(Key::Timeout(group.bits), Value::Seconds(seconds.get()));
        }
        Group { class, ..group }
    }

    fn affinity(&self) -> u32 {
        self.service.affinity.map_or(0, |_| flags::AFFINITY)
    }

    /// Returns the mark of the node's own endpoints: without any, traffic is dropped if there are
    /// some elsewhere.
    fn local_mark(&self, flags: u32) -> u32 {
        let class = match self.local.class {
            REFUSE if self.any => DROP,
            class => class,
        };
        Group { class, ..self.local }.mark(flags | self.affinity())
    }

    fn add_front(&mut self) {
        let mark = if self.service.internal_local {
            self.local_mark(0)
        } else {
            self.cluster.mark(self.affinity())
        };
        let (service, v6) = (self.service, self.v6);
        for address in service.cluster_ips.iter().filter(|address| address.is_ipv6() == v6) {
            self.put(Key::ClusterIp(*address), Value::Nothing);
            let key = Key::Front(*address, self.port.protocol, self.port.port);
            self.put(key, Value::Mark(mark));
        }
    }

    /// Returns the marks of external clients: of all, and where the policy is `Local`, of those
    /// outside the node.
    fn outer_marks(&self) -> (u32, Option<u32>) {
        if !self.any {
            return (self.cluster.mark(0), None);
        }
        if !self.service.external_local() {
            return (self.cluster.mark(flags::MASQUERADE | self.affinity()), None);
        }
        let own = self.cluster.mark(flags::LOCAL | self.affinity());
        (own, Some(self.local_mark(flags::LOCAL)))
    }

    fn add_outer(&mut self, owns: &dyn Fn(&Address) -> bool) {
        let service = self.service;
        let Some(external) = service.external.as_deref() else {
            return;
        };
        let (mark, local) = self.outer_marks();
        let v6 = self.v6;
        let of_family = |address: &&IpAddr| address.is_ipv6() == v6;
        let ranges: Vec<_> = external
            .ranges
            .iter()
            .filter(|(first, _)| of_family(&first))
            .copied()
            .collect();
        let restricted = |address: &IpAddr| !ranges.is_empty() && external.balancers.contains(address);
        let addresses = external.addresses.iter().chain(&external.balancers);
        let addresses: BTreeSet<IpAddr> = addresses.filter(of_family).copied().collect();
        for address in addresses {
            let (protocol, port) = (self.port.protocol, self.port.port);
            if !owns(&(address, protocol, port)) {
                continue;
            }
            let limited = if restricted(&address) { flags::RANGES } else { 0 };
            self.put(Key::Outer(address, protocol, port), Value::Mark(mark | limited));
            if let Some(local) = local {
                self.put(Key::OuterLocal(address, protocol, port), Value::Mark(local));
            }
        }
        if external.balancers.iter().any(restricted) {
            self.add_ranges(ranges, &external.balancers);
        }
    }

    /// A node within the source ranges may also use the balancer's address as its source, since it
    /// may have that address itself.
    fn add_ranges(&mut self, mut ranges: Vec<(IpAddr, IpAddr)>, balancers: &[IpAddr]) {
        let own = self
            .node
            .addresses
            .iter()
            .filter(|address| address.is_ipv6() == self.v6);
        let mut may = own.filter(|own| ranges.iter().any(|(first, last)| first <= *own && *own <= last));
        if may.next().is_some() {
            let of_family = balancers.iter().filter(|address| address.is_ipv6() == self.v6);
            ranges.extend(of_family.map(|address| (*address, *address)));
        }
        for (first, last) in merged(ranges) {
            self.put(Key::Source(self.cluster.bits, first, last), Value::Nothing);
        }
    }

    fn add_node_port(&mut self) {
        let (protocol, port) = (self.port.protocol, self.port.node_port);
        if port == 0 {
            return;
        }
        let (mark, local) = self.outer_marks();
        self.put(Key::NodePort(protocol, port), Value::Mark(mark));
        if let Some(local) = local {
            self.put(Key::NodePortLocal(protocol, port), Value::Mark(local));
        }
    }
}

/// Merges overlapping ranges: the kernel rejects them.
fn merged(mut ranges: Vec<(IpAddr, IpAddr)>) -> Vec<(IpAddr, IpAddr)> {
    ranges.sort_unstable();
    let mut all: Vec<(IpAddr, IpAddr)> = Vec::new();
    for (first, last) in ranges {
        match all.last_mut() {
            Some(before) if first <= before.1 => before.1 = before.1.max(last),
            Some(_) | None => all.push((first, last)),
        }
    }
    all
}
