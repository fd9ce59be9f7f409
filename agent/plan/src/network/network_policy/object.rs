//! Trimmed copies of the network policies that a node keeps.

use std::sync::Arc;

use api::cidr::{Cidr, bits, of_bits};
use api::selector::LabelSelector;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::peers::{Endpoints, Namespaces, PodPeer, Range, Set};
use super::pod::Pod;
use super::{Direction, PolicyName};
use crate::network::proxy::Protocol;

/// A network policy.
#[derive(Debug)]
pub struct Policy {
    selector: LabelSelector,
    /// `None` if the policy does not isolate pods in this direction.
    ingress: Option<Vec<Rule>>,
    egress: Option<Vec<Rule>>,
}

/// A rule whose pod is not known yet.
#[derive(Debug)]
struct Rule {
    /// Alternatives of which at least one must match; a peer that is absent matches all.
    peers: Vec<Option<Arc<Set>>>,
    ports: Ports,
    /// Named ports of the destination pods.
    endpoints: Option<Arc<Set>>,
}

#[derive(Debug)]
enum Ports {
    /// Traffic of any kind.
    All,
    /// Only the ports of `endpoints`, if it is set.
    None,
    Fixed(Arc<Set>),
    /// Some ports are named, with numbers of each pod.
    Named(Vec<(Protocol, u16, u16)>, Vec<(Protocol, Box<str>)>),
}

impl Policy {
    /// Returns the policy's name and the kept parts.
    pub fn new(policy: &NetworkPolicy) -> (PolicyName, Self) {
        let metadata = &policy.metadata;
        let name = (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        );
        let spec = policy.spec.clone().unwrap_or_default();
        let types = spec.policy_types.unwrap_or_default();
        let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
        // pkg/apis/networking/v1/defaults.go: the default of `policyTypes`.
        let isolates = |direction: &str, by_default: bool| {
            types.iter().any(|own| own == direction) || (types.is_empty() && by_default)
        };
        let ingress = isolates("Ingress", true).then(|| {
            let rules = spec.ingress.iter().flatten();
            rules
                .map(|rule| Rule::new(&name.0, Direction::In, rule.from.as_deref(), rule.ports.as_deref()))
                .collect()
        });
        let egress = isolates("Egress", has_egress).then(|| {
            let rules = spec.egress.iter().flatten();
            rules
                .map(|rule| Rule::new(&name.0, Direction::Out, rule.to.as_deref(), rule.ports.as_deref()))
                .collect()
        });
        let own = Self {
            selector: spec
                .pod_selector
                .as_ref()
                .map_or_else(LabelSelector::everything, selector),
            ingress,
            egress,
        };
        (name, own)
    }

    pub(super) fn selects(&self, pod: &Pod) -> bool {
        self.selector.matches(&pod.labels)
    }

    /// Returns the sets of each rule for a pod; `None` if the pod is not isolated.
    pub(super) fn rules(&self, direction: Direction, pod: &Pod) -> Option<Vec<Vec<Arc<Set>>>> {
        let rules = match direction {
            Direction::In => self.ingress.as_ref()?,
            Direction::Out => self.egress.as_ref()?,
        };
        Some(rules.iter().flat_map(|rule| rule.of(pod)).collect())
    }
}

impl Rule {
    fn new(
        namespace: &str,
        direction: Direction,
        peers: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Self {
        let peers = peers.filter(|peers| !peers.is_empty());
        let selected = |peers: &[NetworkPolicyPeer]| {
            let each = peers.iter().filter(|peer| peer.ip_block.is_none());
            each.map(|peer| pod_peer(namespace, peer)).collect::<Vec<_>>()
        };
        let blocks = |peers: &[NetworkPolicyPeer]| {
            let each = peers.iter().filter_map(|peer| peer.ip_block.as_ref());
            merged(each.flat_map(block).collect())
        };
        let (fixed, names) = split(ports.unwrap_or_default());
        let all = ports.is_none_or(<[_]>::is_empty);
        let ports = match (all, direction) {
            (true, _) => Ports::All,
            (false, Direction::In) if !names.is_empty() => Ports::Named(fixed, names.clone()),
            (false, _) if fixed.is_empty() => Ports::None,
            (false, _) => Ports::Fixed(Arc::new(Set::Ports(fixed))),
        };
        let endpoints = (direction == Direction::Out && !names.is_empty()).then(|| {
            let of = peers.map(|peers| (selected(peers), blocks(peers)));
            Arc::new(Set::endpoints(Endpoints { of, names }))
        });
        let sets = peers.map_or_else(
            || vec![None],
            |peers| {
                let (selected, blocks) = (selected(peers), blocks(peers));
                let selected = (!selected.is_empty()).then(|| Some(Arc::new(Set::pods(selected))));
                let blocks = (!blocks.is_empty()).then(|| Some(Arc::new(Set::Ranges(blocks))));
                selected.into_iter().chain(blocks).collect()
            },
        );
        Self {
            peers: sets,
            ports,
            endpoints,
        }
    }

    fn of(&self, pod: &Pod) -> Vec<Vec<Arc<Set>>> {
        let ports = match &self.ports {
            Ports::All => Some(None),
            Ports::None => None,
            Ports::Fixed(ports) => Some(Some(Arc::clone(ports))),
            Ports::Named(fixed, names) => {
                let numbers = names.iter().flat_map(|(protocol, name)| {
                    let ports = pod.ports_named(*protocol, name);
                    ports.map(|port| (*protocol, port, port))
                });
                let all = joined(fixed.iter().copied().chain(numbers).collect());
                (!all.is_empty()).then(|| Some(Arc::new(Set::Ports(all))))
            }
        };
        let by_number = ports.into_iter().flat_map(|ports| {
            let peers = self.peers.iter();
            peers.map(move |peers| peers.iter().chain(&ports).cloned().collect())
        });
        let by_name = self.endpoints.iter().map(|endpoints| vec![Arc::clone(endpoints)]);
        by_number.chain(by_name).collect()
    }
}

/// The API server rejects invalid selectors; one of these would select nothing.
fn selector(structure: &Structure) -> LabelSelector {
    LabelSelector::of(Some(structure)).unwrap_or_else(|_invalid| LabelSelector::nothing())
}

fn pod_peer(namespace: &str, peer: &NetworkPolicyPeer) -> PodPeer {
    let pods = peer.pod_selector.as_ref();
    PodPeer {
        namespaces: peer.namespace_selector.as_ref().map_or_else(
            || Namespaces::Own(namespace.into()),
            |structure| Namespaces::Selected(selector(structure)),
        ),
        pods: pods.map_or_else(LabelSelector::everything, selector),
    }
}

type Split = (Vec<(Protocol, u16, u16)>, Vec<(Protocol, Box<str>)>);

/// Numbered ports, and named ones.
fn split(ports: &[NetworkPolicyPort]) -> Split {
    let (mut fixed, mut names) = (Vec::new(), Vec::new());
    for port in ports {
        let protocol = Protocol::new(port.protocol.as_deref());
        let number = |number: i32| u16::try_from(number).unwrap_or_default();
        match &port.port {
            None => fixed.push((protocol, 0, u16::MAX)),
            Some(IntOrString::Int(first)) => {
                fixed.push((protocol, number(*first), number(port.end_port.unwrap_or(*first))));
            }
            Some(IntOrString::String(name)) => names.push((protocol, name.as_str().into())),
        }
    }
    names.sort();
    names.dedup();
    (joined(fixed), names)
}

/// Merges ports into ranges that do not touch.
fn joined(mut ports: Vec<(Protocol, u16, u16)>) -> Vec<(Protocol, u16, u16)> {
    ports.retain(|(_, first, last)| first <= last);
    ports.sort_unstable();
    let mut all: Vec<(Protocol, u16, u16)> = Vec::new();
    for (protocol, first, last) in ports {
        match all.last_mut() {
            Some((own, _, end)) if *own == protocol && first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => all.push((protocol, first, last)),
        }
    }
    all
}

/// Returns an IP block without its exceptions.
fn block(block: &IPBlock) -> Vec<Range> {
    let range = |text: &String| text.parse().ok().map(Cidr::ends);
    let Some((first, last)) = range(&block.cidr) else {
        return Vec::new();
    };
    let v6 = first.is_ipv6();
    let excepted = block.except.iter().flatten().filter_map(range);
    let mut excepted: Vec<Range> = excepted.filter(|(first, _)| first.is_ipv6() == v6).collect();
    excepted.sort_unstable();
    let (mut all, mut next, end) = (Vec::new(), Some(bits(first)), bits(last));
    for (first, last) in excepted {
        let Some(from) = next.filter(|from| *from <= end) else {
            break;
        };
        if let Some(before) = bits(first).checked_sub(1).filter(|before| *before >= from) {
            all.push((of_bits(v6, from), of_bits(v6, before.min(end))));
        }
        next = bits(last).checked_add(1).map(|after| after.max(from));
    }
    if let Some(from) = next.filter(|from| *from <= end) {
        all.push((of_bits(v6, from), of_bits(v6, end)));
    }
    all
}

/// Merges addresses into ranges that do not touch.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut all: Vec<Range> = Vec::new();
    for (first, last) in ranges {
        match all.last_mut() {
            Some((own, end)) if own.is_ipv6() == first.is_ipv6() && bits(first) <= bits(*end).saturating_add(1) => {
                *end = last.max(*end);
            }
            Some(_) | None => all.push((first, last)),
        }
    }
    all
}
