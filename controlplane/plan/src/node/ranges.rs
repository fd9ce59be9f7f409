//! Pod CIDRs of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::objects::{name, target};
use crate::pod::{Pod, node_of};
use crate::step::{CONFIG_MAPS, NODES, Outcome, PatchKind, Step, Target};

/// A range that nodes' CIDRs are allocated from: at most one for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRange {
    /// An address of it.
    pub address: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The length of a node's prefix, not shorter than its own.
    pub node_prefix: u8,
}

/// Annotation by which a node that registers again reports the CIDRs that its pods use.
const USED: &str = "skiff.dev/pod-cidrs";

/// Namespace of the `ConfigMap` that records the nodes' CIDRs.
pub const NAMESPACE: &str = "kube-system";
/// Name of that `ConfigMap`. Each key is a node, each value its CIDRs separated by commas; a
/// missing node stays until another one gets its CIDRs.
pub const RECORD: &str = "skiff-pod-ranges";

/// The cluster's ranges, and the allocated CIDRs.
#[derive(Debug)]
pub struct Ranges {
    pools: Vec<PodRange>,
    /// Pod CIDRs of nodes, and of nodes that are gone while pods are still bound to them.
    given: BTreeMap<String, Vec<String>>,
    /// CIDRs that are free again, the longest unused first. Pods on a partitioned machine may go on
    /// without the API knowing, so CIDRs that were never assigned come first.
    released: Vec<String>,
    /// Nodes whose entry of the record has not been seen to match yet.
    unrecorded: BTreeSet<String>,
    /// True once the record of an earlier control plane has been read.
    recalled: bool,
}

impl Ranges {
    /// Takes ranges such as `10.244.0.0/16`; a node's first CIDR is from the first one.
    pub fn new(pools: Vec<PodRange>) -> Self {
        Self {
            pools,
            given: BTreeMap::new(),
            released: Vec::new(),
            unrecorded: BTreeSet::new(),
            recalled: false,
        }
    }

    /// Loads, once, the record of an earlier control plane.
    pub fn recall(&mut self, record: Option<&BTreeMap<String, String>>) {
        if std::mem::replace(&mut self.recalled, true) {
            return;
        }
        for (node, ranges) in record.into_iter().flatten() {
            let ranges = ranges.split(',').map(str::to_owned).collect();
            self.given.entry(node.clone()).or_insert(ranges);
        }
    }

    /// Updates the record, the `ConfigMap` with its uid and data if it exists, as far as it
    /// differs for this node or for those whose CIDRs changed.
    pub fn record(&mut self, node: &Node, there: Option<(&str, &BTreeMap<String, String>)>) -> Option<Step> {
        let empty = BTreeMap::new();
        let had = there.map_or(&empty, |(_, had)| had);
        let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
        if there.is_none() {
            self.unrecorded.extend(self.given.keys().cloned());
        }
        self.unrecorded.insert(name(node).to_owned());
        let given = &self.given;
        self.unrecorded.retain(|node| {
            let Some(own) = given.get(node).map(|ranges| ranges.join(",")) else {
                return false;
            };
            let differs = had.get(node) != Some(&own);
            if differs {
                changes.insert(node.clone(), Some(own));
            }
            differs
        });
        if changes.is_empty() {
            return None;
        }
        let mut gone = had.iter().filter(|(node, _)| !given.contains_key(*node)).peekable();
        if gone.peek().is_some() {
            let all: BTreeSet<&str> = given.values().flatten().map(String::as_str).collect();
            // Other nodes have theirs.
            gone.filter(|(_, ranges)| ranges.split(',').all(|range| all.contains(range)))
                .for_each(|(node, _)| drop(changes.insert(node.clone(), None)));
        }
        let outcome = Outcome::default();
        Some(match there {
            Some((uid, _)) => Step::Patch {
                target: Target {
                    resource: CONFIG_MAPS,
                    namespace: NAMESPACE.to_owned(),
                    name: RECORD.to_owned(),
                    uid: uid.to_owned(),
                },
                subresource: None,
                kind: PatchKind::Merge,
                body: Box::new(json!({ "data": changes })),
                outcome,
            },
            None => Step::Create {
                resource: CONFIG_MAPS,
                namespace: NAMESPACE.to_owned(),
                body: Box::new(json!({ "metadata": { "name": RECORD, "namespace": NAMESPACE }, "data": changes })),
                outcome,
            },
        })
    }

    /// Records a node's CIDRs; true if it has any.
    pub fn has(&mut self, node: &Node) -> bool {
        let mut own: Vec<String> = Vec::new();
        for range in used(node) {
            if !own.iter().any(|known| known == range) {
                own.push(range.to_owned());
            }
        }
        let has = !own.is_empty();
        if has && self.given.get(name(node)) != Some(&own) {
            self.unrecorded.insert(name(node).to_owned());
            self.given.insert(name(node).to_owned(), own);
        }
        has
    }

    /// Allocates a CIDR of each range to `node`, which has none, such that no pod of another node
    /// can have an address in it: the node's previous one or the one it reports, else the lowest
    /// that was never allocated, else the one that has been unused for longest. `None` if none is
    /// left.
    pub fn give(&mut self, node: &Node, nodes: &[&Node], pods: &[&Pod]) -> Option<Step> {
        if self.pools.is_empty() {
            return None;
        }
        self.release(nodes, pods);
        let own = name(node);
        let others = self.given.iter().filter(|(other, _)| *other != own);
        let ranges = others.flat_map(|(_, ranges)| ranges).map(String::as_str);
        let nodes = nodes.iter().filter(|other| name(**other) != own);
        let taken = ranges.chain(nodes.flat_map(|node| used(node))).filter_map(parse);
        let pods = pods.iter().filter(|pod| node_of(pod).is_some_and(|node| node != own));
        let addresses = pods.flat_map(|pod| &pod.status.addresses);
        let addresses = addresses.filter_map(|text| text.parse().ok());
        let addresses = addresses.map(|address: IpAddr| (address, width(address)));
        let taken: Vec<(IpAddr, u8)> = taken.chain(addresses).collect();
        let had = self.given.get(own).into_iter().flatten().map(String::as_str);
        let told = node.metadata.annotations.as_ref().and_then(|all| all.get(USED));
        let told = told.into_iter().flat_map(|told| told.split(',').map(str::trim));
        let wanted: Vec<&str> = had.chain(told).collect();
        let each = self.pools.iter().map(|pool| {
            let taken = Taken::of(pool, &taken);
            let wanted = wanted.iter().find(|wanted| pool.may_give(wanted, &taken));
            let unused = || {
                self.released
                    .iter()
                    .find(|unused| pool.may_give(unused, &taken))
                    .cloned()
            };
            let fresh = || pool.free(&taken, &self.released);
            wanted.map(ToString::to_string).or_else(fresh).or_else(unused)
        });
        let ranges = each.collect::<Option<Vec<String>>>()?;
        self.released.retain(|unused| !ranges.contains(unused));
        self.given.insert(own.to_owned(), ranges.clone());
        self.unrecorded.insert(own.to_owned());
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

    /// Releases the CIDRs of nodes that are gone with all their pods.
    fn release(&mut self, nodes: &[&Node], pods: &[&Pod]) {
        let present = nodes.iter().map(|node| name(*node));
        let alive: BTreeSet<&str> = present.chain(pods.iter().filter_map(|pod| node_of(pod))).collect();
        let gone = self.given.extract_if(.., |node, _| !alive.contains(node.as_str()));
        for range in gone.flat_map(|(_, ranges)| ranges) {
            self.released.retain(|known| *known != range);
            self.released.push(range);
        }
    }
}

impl PodRange {
    /// The lowest CIDR that overlaps no taken one and was not used before.
    fn free(&self, taken: &Taken, released: &[String]) -> Option<String> {
        let network = cut(self.address, self.prefix)?;
        let parts = u32::from(self.node_prefix.checked_sub(self.prefix)?);
        let rest = u32::from(width(self.address).checked_sub(self.node_prefix)?);
        // No cluster has more nodes than this.
        let mut parts = 0..1_u128 << parts.min(16);
        parts.find_map(|part| {
            let address = with(self.address, network | part.checked_shl(rest)?);
            if taken.overlaps(address) {
                return None;
            }
            let text = format!("{address}/{}", self.node_prefix);
            (!released.contains(&text)).then_some(text)
        })
    }

    /// True if a CIDR is a free part of this range.
    fn may_give(&self, range: &str, taken: &Taken) -> bool {
        parse(range).is_some_and(|(address, prefix)| {
            address.is_ipv4() == self.address.is_ipv4()
                && prefix == self.node_prefix
                && cut(address, self.prefix) == cut(self.address, self.prefix)
                && !taken.overlaps(address)
        })
    }
}

/// Taken parts of a range, by their bits.
struct Taken {
    prefix: u8,
    parts: BTreeSet<u128>,
    /// CIDRs larger than a part.
    larger: Vec<(IpAddr, u8)>,
}

impl Taken {
    fn of(pool: &PodRange, taken: &[(IpAddr, u8)]) -> Self {
        let own = taken
            .iter()
            .filter(|(other, _)| other.is_ipv4() == pool.address.is_ipv4());
        let (larger, parts): (Vec<_>, Vec<_>) = own.partition(|(_, prefix)| *prefix < pool.node_prefix);
        Self {
            prefix: pool.node_prefix,
            parts: parts
                .into_iter()
                .filter_map(|(other, _)| cut(other, pool.node_prefix))
                .collect(),
            larger,
        }
    }

    /// True if a part overlaps a CIDR that is taken.
    fn overlaps(&self, part: IpAddr) -> bool {
        let is_taken = cut(part, self.prefix).is_some_and(|bits| self.parts.contains(&bits));
        is_taken
            || self
                .larger
                .iter()
                .any(|(other, prefix)| cut(*other, *prefix) == cut(part, *prefix))
    }
}

/// Pod CIDRs of a node.
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
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{Node, NodeSpec};

    use serde_json::json;

    use super::{PodRange, Ranges, parse};
    use crate::{pod::Pod, step::Step};

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
        given_beside(ranges, to, nodes, &[])
    }

    fn given_beside(ranges: &mut Ranges, to: &Node, nodes: &[&Node], pods: &[&Pod]) -> String {
        for node in nodes {
            ranges.has(node);
        }
        match ranges.give(to, nodes, pods) {
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
        let has = node("b", &["10.244.1.0/24", "fd00:10:244:1::/64"]);
        assert!(ranges.has(&has) && !ranges.has(&a));
        let c = node("c", &[]);
        let third = "[\"10.244.2.0/24\",\"fd00:10:244:2::/64\"]";
        assert_eq!(
            given(&mut ranges, &c, &[&b, &c]),
            third,
            "not that of a node which is gone"
        );
        let mut six = pools(&[("fd00:10:244::/48", 64)]);
        assert_eq!(given(&mut six, &a, &[&a]), "[\"fd00:10:244::/64\"]");
        assert_eq!(given(&mut pools(&[]), &a, &[&a]), "nothing");
    }

    fn pod(node: &str, address: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": node, "containers": []},
            "status": {"podIPs": [{"ip": address}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn using(name: &str, ranges: &str) -> Node {
        let mut node = node(name, &[]);
        node.metadata.annotations = Some([(super::USED.to_owned(), ranges.to_owned())].into());
        node
    }

    #[test]
    fn a_range_is_that_of_one_node_while_its_pods_may_live() {
        let range = |part: u8| format!("10.9.0.{}/27", part * 32);
        let known = ["a", "b", "c"];
        let pods = [pod("b", "10.9.0.40"), pod("gone", "10.9.0.100")];
        // The nodes a, b and c had the first three of eight CIDRs; the requesting node reports a
        // CIDR or none.
        for (case, asks, says, present, with_pods, expected) in [
            ("the lowest that was never given", "new", "", "abc", false, 3),
            ("not that of a pod whose node is gone", "new", "", "abc", true, 4),
            ("nor one whose node has just gone", "new", "", "ac", false, 3),
            ("its own that it had before", "b", "", "ac", true, 1),
            ("its own although its pods are gone", "b", "", "ac", false, 1),
            ("the one that it uses", "new", "10.9.0.160/27", "ab", false, 5),
            ("unless another node has it", "new", "10.9.0.0/27", "abc", false, 3),
            ("or pods of another", "new", "10.9.0.96/27", "abc", true, 4),
            ("or it is none of the cluster's", "new", "10.8.0.0/27", "abc", false, 3),
            ("or is no part", "new", "10.9.0.0/24,x", "abc", false, 3),
        ] {
            let mut ranges = pools(&[("10.9.0.0/24", 27)]);
            let had = (0..).zip(known).map(|(part, name)| node(name, &[&range(part)]));
            let had: Vec<Node> = had.collect();
            for node in &had {
                assert!(ranges.has(node));
            }
            let asks = using(asks, says);
            let there = had.iter().zip(known).filter(|(_, name)| present.contains(name));
            let there: Vec<&Node> = there.map(|(node, _)| node).chain([&asks]).collect();
            let pods: Vec<&Pod> = pods.iter().filter(|_| with_pods).collect();
            let given = given_beside(&mut ranges, &asks, &there, &pods);
            assert_eq!(given, format!("[\"{}\"]", range(expected)), "{case}");
        }
    }

    #[test]
    fn what_is_left_of_nodes_that_are_gone_comes_last() {
        let mut ranges = pools(&[("10.9.0.0/30", 31)]);
        let (a, b) = (node("a", &["10.9.0.0/31"]), node("b", &["10.9.0.2/31"]));
        let (c, d) = (node("c", &[]), node("d", &[]));
        ranges.has(&a);
        ranges.has(&b);
        assert_eq!(given(&mut ranges, &c, &[&a, &b, &c]), "nothing");
        let left = pod("b", "10.9.0.3");
        assert_eq!(
            given_beside(&mut ranges, &c, &[&a, &c], &[&left]),
            "nothing",
            "a pod may live"
        );
        assert_eq!(given(&mut ranges, &c, &[&a, &c]), "[\"10.9.0.2/31\"]", "none can");
        assert_eq!(given(&mut ranges, &d, &[&c, &d]), "[\"10.9.0.0/31\"]");
    }

    #[test]
    fn what_nodes_had_outlives_the_control_plane() {
        let (a, b) = (node("a", &["10.9.0.0/27"]), node("b", &["10.9.0.32/27"]));
        let mut before = pools(&[("10.9.0.0/24", 27)]);
        assert!(before.has(&a) && before.has(&b));
        let Some(Step::Create { body, .. }) = before.record(&a, None) else {
            panic!("nothing is recorded");
        };
        let mut kept: BTreeMap<String, String> = serde_json::from_value(body["data"].clone()).unwrap();
        assert_eq!(before.record(&a, Some(("uid", &kept))), None);

        // Both are gone when the next control plane sees a new node and b again.
        let mut ranges = pools(&[("10.9.0.0/24", 27)]);
        ranges.recall(Some(&kept));
        let (c, b) = (node("c", &[]), node("b", &[]));
        assert_eq!(given(&mut ranges, &c, &[&b, &c]), "[\"10.9.0.64/27\"]");
        assert_eq!(given(&mut ranges, &b, &[&b, &c]), "[\"10.9.0.32/27\"]");
        let Some(Step::Patch { body, .. }) = ranges.record(&c, Some(("uid", &kept))) else {
            panic!("nothing is recorded");
        };
        assert_eq!(body["data"], json!({"c": "10.9.0.64/27"}));
        kept.insert("c".to_owned(), "10.9.0.64/27".to_owned());

        // A CIDR that another node got is removed from the record of the node that had it before.
        let d = node("d", &["10.9.0.0/27"]);
        assert!(ranges.has(&d));
        let Some(Step::Patch { body, .. }) = ranges.record(&d, Some(("uid", &kept))) else {
            panic!("nothing is recorded");
        };
        assert_eq!(body["data"], json!({"a": null, "d": "10.9.0.0/27"}));
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
