//! Which ranges of pod addresses each node gets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::{
    objects::{name, target},
    step::{NODES, Outcome, PatchKind, Step},
};

/// A range that nodes get parts of: one for each family at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRange {
    /// An address of it.
    pub address: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The length of a node's prefix, not shorter than its own.
    pub node_prefix: u8,
}

/// The cluster's ranges, and what has been given to whom.
#[derive(Debug)]
pub struct Ranges {
    pools: Vec<PodRange>,
    given: BTreeMap<String, Vec<String>>,
}

impl Ranges {
    /// Ranges such as `10.244.0.0/16`; a node's first one is of the first.
    pub fn new(pools: Vec<PodRange>) -> Self {
        Self {
            pools,
            given: BTreeMap::new(),
        }
    }

    /// Gives `node` of each range the lowest part that none of `nodes` has and that was not given before. `None` where it has
    /// some, or where none is left.
    pub fn give(&mut self, node: &Node, nodes: &[&Node]) -> Option<Step> {
        if self.pools.is_empty() || used(node).next().is_some() {
            return None;
        }
        let present: BTreeSet<&str> = nodes.iter().map(|node| name(*node)).collect();
        self.given.retain(|node, _| present.contains(node.as_str()));
        let ranges = if let Some(ranges) = self.given.get(name(node)) {
            ranges.clone()
        } else {
            let given = self.given.values().flatten().map(String::as_str);
            let taken = given.chain(nodes.iter().flat_map(|node| used(node)));
            let taken: Vec<(IpAddr, u8)> = taken.filter_map(parse).collect();
            let each = self.pools.iter().map(|pool| pool.free(&taken));
            each.collect::<Option<Vec<String>>>()?
        };
        self.given.insert(name(node).to_owned(), ranges.clone());
        Some(Step::Patch {
            target: target(NODES, node),
            subresource: None,
            kind: PatchKind::Merge,
            body: Box::new(json!({
                "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
                "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges },
            })),
            outcome: Outcome::default(),
        })
    }
}

impl PodRange {
    /// The lowest part that has no address in common with what is taken.
    fn free(&self, taken: &[(IpAddr, u8)]) -> Option<String> {
        let network = cut(self.address, self.prefix)?;
        let parts = u32::from(self.node_prefix.checked_sub(self.prefix)?);
        let rest = u32::from(width(self.address).checked_sub(self.node_prefix)?);
        // More nodes than this no cluster has.
        let mut parts = 0..1_u128 << parts.min(16);
        parts.find_map(|part| {
            let address = with(self.address, network | part.checked_shl(rest)?);
            let overlaps = |(other, prefix): &(IpAddr, u8)| {
                let common = self.node_prefix.min(*prefix);
                other.is_ipv4() == address.is_ipv4() && cut(*other, common) == cut(address, common)
            };
            (!taken.iter().any(overlaps)).then(|| format!("{address}/{}", self.node_prefix))
        })
    }
}

/// What a node has.
fn used(node: &Node) -> impl Iterator<Item = &str> {
    let spec = node.spec.iter();
    let each = spec.flat_map(|spec| spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()));
    each.map(String::as_str).filter(|text| !text.is_empty())
}

fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let (address, prefix) = (address.parse().ok()?, prefix.parse().ok()?);
    (prefix <= width(address)).then_some((address, prefix))
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The bits of the first address with the same prefix.
fn cut(address: IpAddr, prefix: u8) -> Option<u128> {
    let rest = width(address).checked_sub(prefix)?;
    let bits = match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let common = u128::MAX.checked_shl(rest.into()).unwrap_or(0);
    Some(bits & common)
}

/// The address with these bits, of the family of another one.
fn with(family: IpAddr, bits: u128) -> IpAddr {
    let [.., a, b, c, d] = bits.to_be_bytes();
    match family {
        IpAddr::V4(_) => Ipv4Addr::new(a, b, c, d).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, NodeSpec};

    use super::{PodRange, Ranges, parse};
    use crate::step::Step;

    fn node(name: &str, ranges: &[&str]) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.spec = Some(NodeSpec {
            pod_cidr: ranges.first().map(ToString::to_string),
            pod_cidrs: Some(ranges.iter().map(ToString::to_string).collect()),
            ..NodeSpec::default()
        });
        node
    }

    fn pools(texts: &[(&str, u8)]) -> Ranges {
        let pool = |(text, node_prefix): &(&str, u8)| {
            let (address, prefix) = parse(text).unwrap();
            PodRange {
                address,
                prefix,
                node_prefix: *node_prefix,
            }
        };
        Ranges::new(texts.iter().map(pool).collect())
    }

    fn given(ranges: &mut Ranges, to: &Node, nodes: &[&Node]) -> String {
        match ranges.give(to, nodes) {
            Some(Step::Patch { body, .. }) => {
                assert_eq!(body["spec"]["podCIDR"], body["spec"]["podCIDRs"][0]);
                body["spec"]["podCIDRs"].to_string()
            }
            Some(other) => panic!("{other:?}"),
            None => "nothing".to_owned(),
        }
    }

    #[test]
    fn a_node_gets_a_part_of_each_range_once() {
        let mut ranges = pools(&[("10.244.0.0/16", 24), ("fd00:10:244::/48", 64)]);
        let (a, b) = (node("a", &[]), node("b", &[]));
        let first = "[\"10.244.0.0/24\",\"fd00:10:244::/64\"]";
        assert_eq!(given(&mut ranges, &a, &[&a, &b]), first);
        assert_eq!(
            given(&mut ranges, &a, &[&a, &b]),
            first,
            "it was given, and is not seen yet"
        );
        let second = "[\"10.244.1.0/24\",\"fd00:10:244:1::/64\"]";
        assert_eq!(given(&mut ranges, &b, &[&a, &b]), second);
        let has = node("b", &["10.244.1.0/24"]);
        assert_eq!(given(&mut ranges, &has, &[&a, &has]), "nothing");
        let c = node("c", &[]);
        assert_eq!(given(&mut ranges, &c, &[&b, &c]), first, "that of a node which is gone");
        let mut six = pools(&[("fd00:10:244::/48", 64)]);
        assert_eq!(given(&mut six, &a, &[&a]), "[\"fd00:10:244::/64\"]");
        assert_eq!(given(&mut pools(&[]), &a, &[&a]), "nothing");
    }

    #[test]
    fn parts_have_no_address_in_common() {
        let wide = node("wide", &["10.244.0.0/23"]);
        let narrow = node("narrow", &["10.244.2.128/25"]);
        let a = node("a", &[]);
        let mut ranges = pools(&[("10.244.0.0/16", 24)]);
        assert_eq!(given(&mut ranges, &a, &[&a, &wide, &narrow]), "[\"10.244.3.0/24\"]");
        let mut small = pools(&[("10.244.0.0/23", 24)]);
        assert_eq!(given(&mut small, &a, &[&a, &wide]), "nothing", "all are taken");
        let mut whole = pools(&[("fd00::/64", 64)]);
        assert_eq!(given(&mut whole, &a, &[&a]), "[\"fd00::/64\"]");
        let b = node("b", &["fd00::/64"]);
        assert_eq!(given(&mut pools(&[("fd00::/64", 64)]), &a, &[&a, &b]), "nothing");
    }
}
