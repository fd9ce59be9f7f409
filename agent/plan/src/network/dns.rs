//! Names of Services and pods in the cluster, by the Kubernetes DNS specification 1.1.
//!
//! [`answer`] looks up a question in a [`Directory`] of Services and EndpointSlices at each query:
//! a separate zone would have to be maintained and would cost memory. Where the specification is
//! silent, it follows the `kubernetes` plugin of `CoreDNS` (`plugin/kubernetes/kubernetes.go`).

mod forwarding;
mod name;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

pub use forwarding::Forwarding;
use name::{Place, parse};
pub use name::{Reverse, reverse};

use crate::network::proxy::{Endpoint, Name, Port, Protocol, Service, Slice, SlicePort};

/// TTL of records in seconds, as in kubeadm's Corefile.
pub const TTL: u32 = 30;

/// Version of the specification, answered at `dns-version.DOMAIN`.
const VERSION: &str = "1.1.0";

/// Services and EndpointSlices for lookups.
pub trait Directory {
    /// True once all Services and EndpointSlices have been listed: before that, none counts as
    /// absent.
    fn is_complete(&self) -> bool;
    /// Returns the Service with that name.
    fn service(&self, name: &Name) -> Option<Arc<Service>>;
    /// The EndpointSlices of a Service.
    fn slices(&self, service: &Name) -> Vec<Arc<Slice>>;
    /// True if the namespace has a Service.
    fn has_namespace(&self, namespace: &str) -> bool;
    /// Returns the Services with this cluster IP or an endpoint with this address.
    fn at(&self, address: IpAddr) -> Vec<Name>;
    /// True if this address may ask, beside the ranges of clients that bound the server.
    fn serves(&self, _client: IpAddr) -> bool {
        true
    }
}

/// Record types of the cluster's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `A`.
    A,
    /// `AAAA`.
    Aaaa,
    /// `CNAME`.
    Cname,
    /// `PTR`.
    Ptr,
    /// `SRV`.
    Srv,
    /// `TXT`.
    Txt,
    /// Any other: names exist, but have no record of the type.
    Other,
}

/// A record without its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// `A` or `AAAA`.
    Address(IpAddr),
    /// `CNAME`: a name, without the dot at its end.
    Alias(String),
    /// `PTR`.
    Pointer(String),
    /// `SRV`, with priority 0.
    Location {
        /// Weight: share of the clients, in hundredths.
        weight: u16,
        /// Port.
        port: u16,
        /// Name that has the addresses.
        target: String,
    },
    /// `TXT`.
    Text(&'static str),
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name is outside of the cluster's domain.
    Foreign,
    /// Not known yet: SERVFAIL, so that clients retry.
    Unknown,
    /// No such name: NXDOMAIN.
    NoSuchName,
    /// The name exists, though maybe without a record of the requested type.
    Records {
        /// Records of the name itself.
        own: Vec<Data>,
        /// Addresses of the names that `own` points to.
        additional: Vec<(String, IpAddr)>,
    },
}

impl Answer {
    fn own(own: Vec<Data>) -> Self {
        Self::Records {
            own,
            additional: Vec::new(),
        }
    }

    fn empty() -> Self {
        Self::own(Vec::new())
    }
}

/// Looks up a name. `name` is in lower case and has no trailing dot; `domain` is the cluster's,
/// such as `cluster.local`.
pub fn answer(directory: &impl Directory, domain: &str, name: &str, kind: Kind) -> Answer {
    if let Some(reverse) = reverse(name) {
        return match reverse {
            Reverse::Address(_) if !directory.is_complete() => Answer::Unknown,
            Reverse::Address(address) => pointers(directory, domain, address, kind),
            Reverse::Part => Answer::Foreign,
        };
    }
    let Some(place) = parse(name, domain) else {
        return Answer::Foreign;
    };
    match place {
        Place::Namespace(_) | Place::Service { .. } if !directory.is_complete() => Answer::Unknown,
        Place::Version if kind == Kind::Txt => Answer::own(vec![Data::Text(VERSION)]),
        Place::Apex | Place::Version => Answer::empty(),
        Place::Namespace(namespace) if directory.has_namespace(namespace) => Answer::empty(),
        Place::Pod(address) => Answer::own(addresses([address], kind)),
        Place::Namespace(_) | Place::Unknown => Answer::NoSuchName,
        Place::Service {
            namespace,
            service,
            part,
        } => {
            let name = Name::new(namespace, service);
            let Some(found) = directory.service(&name) else {
                return Answer::NoSuchName;
            };
            let base = format!("{service}.{namespace}.svc.{domain}");
            let slices = || directory.slices(&name);
            of_service(&found, slices, part, &base, kind)
        }
    }
}

/// Part of a Service that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Whole,
    Endpoint(&'a str),
    Protocol(&'a str),
    Port { name: &'a str, protocol: &'a str },
}

impl Part<'_> {
    fn wants(self, name: &str, protocol: Protocol) -> bool {
        let protocol = protocol.name();
        match self {
            Self::Whole | Self::Endpoint(_) => true,
            Self::Protocol(wanted) => protocol.eq_ignore_ascii_case(wanted),
            Self::Port {
                name: own,
                protocol: wanted,
            } => name == own && protocol.eq_ignore_ascii_case(wanted),
        }
    }
}

/// An address and port behind a name, and the name that resolves to this address only.
struct Found {
    address: IpAddr,
    port: u16,
    host: String,
}

fn of_service(
    service: &Service,
    slices: impl FnOnce() -> Vec<Arc<Slice>>,
    part: Part<'_>,
    base: &str,
    kind: Kind,
) -> Answer {
    if let Some(alias) = service.external_name.as_deref() {
        return match part {
            Part::Whole => Answer::own(vec![Data::Alias(alias.trim_end_matches('.').to_ascii_lowercase())]),
            Part::Endpoint(_) | Part::Protocol(_) | Part::Port { .. } => Answer::NoSuchName,
        };
    }
    let found = if service.headless || matches!(part, Part::Endpoint(_)) {
        endpoints(&slices(), part, base)
    } else {
        cluster(&service.cluster_ips, &service.ports, part, base)
    };
    if found.is_empty() {
        return Answer::NoSuchName;
    }
    records(found, part, kind)
}

fn records(found: Vec<Found>, part: Part<'_>, kind: Kind) -> Answer {
    if matches!(part, Part::Protocol(_)) {
        return Answer::empty();
    }
    if kind != Kind::Srv {
        return Answer::own(addresses(found.into_iter().map(|found| found.address), kind));
    }
    let targets: BTreeSet<(&str, u16)> = found.iter().map(|found| (found.host.as_str(), found.port)).collect();
    let share = u16::try_from(100 / targets.len().max(1)).unwrap_or_default().max(1);
    let own = targets.into_iter().map(|(host, port)| Data::Location {
        weight: share,
        port,
        target: host.to_owned(),
    });
    let own = own.collect();
    let additional: BTreeSet<(String, IpAddr)> = found.into_iter().map(|found| (found.host, found.address)).collect();
    Answer::Records {
        own,
        additional: additional.into_iter().collect(),
    }
}

/// Returns the addresses of the requested family without duplicates, in order.
fn addresses(all: impl IntoIterator<Item = IpAddr>, kind: Kind) -> Vec<Data> {
    let mut seen = BTreeSet::new();
    let wanted = |address: &IpAddr| match kind {
        Kind::A => address.is_ipv4(),
        Kind::Aaaa => address.is_ipv6(),
        Kind::Cname | Kind::Ptr | Kind::Srv | Kind::Txt | Kind::Other => false,
    };
    let all = all.into_iter().filter(wanted).filter(|address| seen.insert(*address));
    all.map(Data::Address).collect()
}

fn cluster(own: &[IpAddr], ports: &[Port], part: Part<'_>, base: &str) -> Vec<Found> {
    let wanted = ports.iter().filter(|port| part.wants(&port.name, port.protocol));
    let each = wanted.flat_map(|port| own.iter().map(move |address| (*address, port.port)));
    each.map(|(address, port)| Found {
        address,
        port,
        host: base.to_owned(),
    })
    .collect()
}

/// Returns the ready endpoints for a part of the Service's name.
fn endpoints(slices: &[Arc<Slice>], part: Part<'_>, base: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let unnamed = [SlicePort {
        name: Box::default(),
        protocol: Protocol::Tcp,
        port: 0,
    }];
    for slice in slices {
        // A slice without ports still has addresses.
        let ports = if slice.ports.is_empty() {
            &unnamed[..]
        } else {
            &slice.ports
        };
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready) {
            let label = label(endpoint);
            if matches!(part, Part::Endpoint(wanted) if wanted != label) {
                continue;
            }
            let wanted = ports.iter().filter(|port| part.wants(&port.name, port.protocol));
            found.extend(wanted.map(|port| Found {
                address: endpoint.address,
                port: port.port,
                host: format!("{label}.{base}"),
            }));
        }
    }
    found
}

/// First label of an endpoint's name: its hostname, or its address with dashes.
fn label(endpoint: &Endpoint) -> String {
    let hostname = endpoint
        .details
        .as_ref()
        .and_then(|details| details.hostname.as_deref());
    let dashed = || {
        let mut label = endpoint.address.to_string().replace(['.', ':'], "-");
        // No label ends with a dash: `endpointHostname` of CoreDNS's kubernetes plugin.
        if label.ends_with('-') {
            label.push('0');
        }
        label
    };
    hostname.map_or_else(dashed, str::to_ascii_lowercase)
}

fn pointers(directory: &impl Directory, domain: &str, address: IpAddr, kind: Kind) -> Answer {
    let mut own = BTreeSet::new();
    for name in directory.at(address) {
        let base = format!("{}.{}.svc.{domain}", name.name(), name.namespace());
        let Some(service) = directory.service(&name) else {
            continue;
        };
        if service.cluster_ips.contains(&address) {
            own.insert(Data::Pointer(base));
        } else if service.headless {
            let found = endpoints(&directory.slices(&name), Part::Whole, &base);
            let hosts = found.into_iter().filter(|found| found.address == address);
            own.extend(hosts.map(|found| Data::Pointer(found.host)));
        }
    }
    match kind {
        _ if own.is_empty() => Answer::Foreign,
        Kind::Ptr => Answer::own(own.into_iter().collect()),
        Kind::A | Kind::Aaaa | Kind::Cname | Kind::Srv | Kind::Txt | Kind::Other => Answer::empty(),
    }
}

#[cfg(test)]
mod tests;
