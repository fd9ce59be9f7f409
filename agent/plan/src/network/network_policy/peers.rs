//! Sets that rules look up: peers by their labels or addresses, and ports.

use std::net::IpAddr;

use api::cidr::bits;
use api::selector::LabelSelector;

use super::pod::{Labels, Pod};
use super::{Element, Shape};
use crate::network::proxy::Protocol;

/// The namespaces that a peer's pods are in.
#[derive(Debug)]
pub(super) enum Namespaces {
    /// The policy's own namespace.
    Own(Box<str>),
    /// Namespaces whose labels match.
    Selected(LabelSelector),
}

/// Pods of one `podSelector` and `namespaceSelector`.
#[derive(Debug)]
pub(super) struct PodPeer {
    pub(super) namespaces: Namespaces,
    pub(super) pods: LabelSelector,
}

impl PodPeer {
    fn matches(&self, pod: &Pod, namespace: Option<&Labels>) -> bool {
        let inside = match &self.namespaces {
            Namespaces::Own(name) => *name == pod.namespace,
            Namespaces::Selected(selector) => selector.matches_option(namespace),
        };
        inside && self.pods.matches(&pod.labels)
    }

    fn text(&self) -> String {
        match &self.namespaces {
            Namespaces::Own(name) => format!("{name}/{}", self.pods),
            Namespaces::Selected(selector) => format!("{{{selector}}}/{}", self.pods),
        }
    }
}

/// An address range, first to last, of one family.
pub(super) type Range = (IpAddr, IpAddr);

/// A protocol with its first and last port.
pub(super) type PortRange = (Protocol, u16, u16);

/// The contents of a set. Sets of equal contents are shared.
#[derive(Debug)]
pub(super) enum Set {
    /// Addresses of the selected pods; the text is the set's identity.
    Pods(String, Vec<PodPeer>),
    /// Disjoint ranges.
    Ranges(Vec<Range>),
    /// Protocols with disjoint ranges of ports.
    Ports(Vec<PortRange>),
    /// Named ports of the pods that have them.
    Endpoints(String, Endpoints),
}

/// Named ports of pods.
#[derive(Debug)]
pub(super) struct Endpoints {
    /// Peers that have the ports; `None` for all pods.
    pub(super) of: Option<(Vec<PodPeer>, Vec<Range>)>,
    pub(super) names: Vec<(Protocol, Box<str>)>,
}

impl Set {
    pub(super) fn pods(peers: Vec<PodPeer>) -> Self {
        Self::Pods(text(&peers), peers)
    }

    pub(super) fn endpoints(own: Endpoints) -> Self {
        let of = own
            .of
            .as_ref()
            .map(|(peers, ranges)| format!("{} {ranges:?}", text(peers)));
        Self::Endpoints(format!("{of:?} {:?}", own.names), own)
    }

    /// Identity of a set.
    fn key(&self) -> (u8, &str, &[Range], &[PortRange]) {
        match self {
            Self::Pods(text, _) => (0, text, &[], &[]),
            Self::Ranges(ranges) => (1, "", ranges, &[]),
            Self::Ports(ports) => (2, "", &[], ports),
            Self::Endpoints(text, _) => (3, text, &[], &[]),
        }
    }

    pub(super) const fn shape(&self) -> Shape {
        match self {
            Self::Pods(..) => Shape::Addresses,
            Self::Ranges(_) => Shape::Ranges,
            Self::Ports(_) => Shape::Ports,
            Self::Endpoints(..) => Shape::Endpoints,
        }
    }

    /// True if its elements change with pods.
    pub(super) const fn follows_pods(&self) -> bool {
        matches!(self, Self::Pods(..) | Self::Endpoints(..))
    }

    /// Returns the elements that do not depend on pods.
    pub(super) fn fixed(&self, number: u32) -> Vec<Element> {
        match self {
            Self::Ranges(ranges) => {
                let each = ranges.iter();
                each.map(|(first, last)| Element::Range(number, *first, *last))
                    .collect()
            }
            Self::Ports(ports) => {
                let each = ports.iter();
                each.map(|(protocol, first, last)| Element::Ports(number, *protocol, *first, *last))
                    .collect()
            }
            Self::Pods(..) | Self::Endpoints(..) => Vec::new(),
        }
    }

    /// Returns the elements for one address of a pod.
    pub(super) fn of_pod(&self, number: u32, pod: &Pod, namespace: Option<&Labels>, address: IpAddr) -> Vec<Element> {
        let selected = |peers: &[PodPeer]| peers.iter().any(|peer| peer.matches(pod, namespace));
        match self {
            Self::Pods(_, peers) if selected(peers) => vec![Element::Address(number, address)],
            Self::Endpoints(_, own) => {
                let within = |(first, last): &Range| {
                    first.is_ipv6() == address.is_ipv6() && (bits(*first)..=bits(*last)).contains(&bits(address))
                };
                let is_one = own
                    .of
                    .as_ref()
                    .is_none_or(|(peers, ranges)| selected(peers) || ranges.iter().any(within));
                let names = own.names.iter().filter(|_| is_one);
                names
                    .flat_map(|(protocol, name)| {
                        let ports = pod.ports_named(*protocol, name);
                        ports.map(move |port| Element::Endpoint(number, address, *protocol, port))
                    })
                    .collect()
            }
            Self::Pods(..) | Self::Ranges(_) | Self::Ports(_) => Vec::new(),
        }
    }
}

fn text(peers: &[PodPeer]) -> String {
    let mut all: Vec<String> = peers.iter().map(PodPeer::text).collect();
    all.sort();
    all.dedup();
    all.join(";")
}

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Set {}

impl PartialOrd for Set {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Set {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
