//! Pod CIDRs of nodes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::objects::{name, target};
use crate::pod::{Pod, node_of};
use crate::step::{CONFIG_MAPS, NODES, Outcome, Step, Target};

/// A range that nodes' CIDRs are allocated from: at most one for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRange {
    /// All of it.
    pub range: Cidr,
    /// The length of a node's prefix, not shorter than its own.
    pub node_prefix: u8,
}

/// Annotation by which a node that registers again reports the CIDRs that its pods use.
const USED: &str = "skiff.dev/pod-cidrs";
/// Annotation with the ranges of a machine's links.
const LINKS: &str = "skiff.dev/links";

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
    given: BTreeMap<String, Given>,
    /// CIDRs that are free again, the longest unused first. Pods on a partitioned machine may go on
    /// without the API knowing, so CIDRs that were never assigned come first.
    released: Vec<String>,
    /// Nodes whose entry of the record has not been seen to match yet.
    unrecorded: BTreeSet<String>,
    /// True once the record of an earlier control plane has been read.
    recalled: bool,
    /// The last change of the record.
    sent: Option<Sent>,
}

/// CIDRs of a node.
#[derive(Debug)]
struct Given {
    ranges: Vec<String>,
    parsed: Vec<Cidr>,
    /// True until the node is seen with them, or another one with CIDRs that it was not given.
    new: bool,
}

impl Given {
    fn of(ranges: Vec<String>, new: bool) -> Self {
        let parsed = ranges.iter().filter_map(|range| range.parse().ok()).collect();
        Self { ranges, parsed, new }
    }
}

/// A change of the record. Nodes that register meanwhile share the next one.
#[derive(Debug)]
struct Sent {
    /// Version of the record that it changes.
    version: Option<String>,
    /// The node whose plan it is part of.
    node: String,
    at: Duration,
}

/// Time for which others wait until a change of the record is seen.
pub const SENT: Duration = Duration::from_secs(1);

/// State of a node's entry of the record.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one is made for each plan")]
pub enum Recorded {
    /// It is there.
    Yes,
    /// This step writes it.
    By(Step),
    /// It has to wait for another change of the record, for at most [`SENT`].
    Later,
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
            sent: None,
        }
    }

    /// Loads, once, the record of an earlier control plane.
    pub fn recall(&mut self, record: Option<&BTreeMap<String, String>>) {
        if std::mem::replace(&mut self.recalled, true) {
            return;
        }
        for (node, ranges) in record.into_iter().flatten() {
            let ranges = ranges.split(',').map(str::to_owned).collect();
            self.given.entry(node.clone()).or_insert(Given::of(ranges, false));
        }
    }

    /// Updates the record, the `ConfigMap` with its metadata and data if it exists, as far as it
    /// differs for this node or for those whose CIDRs changed.
    pub fn record(
        &mut self,
        node: &Node,
        there: Option<(&ObjectMeta, &BTreeMap<String, String>)>,
        at: Duration,
    ) -> Recorded {
        let empty = BTreeMap::new();
        let had = there.map_or(&empty, |(_, had)| had);
        let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
        if there.is_none() {
            self.unrecorded.extend(self.given.keys().cloned());
        }
        self.unrecorded.insert(name(node).to_owned());
        let given = &self.given;
        self.unrecorded.retain(|node| {
            let Some(own) = given.get(node).map(|own| own.ranges.join(",")) else {
                return false;
            };
            let differs = had.get(node) != Some(&own);
            if differs {
                changes.insert(node.clone(), Some(own));
            }
            differs
        });
        if changes.is_empty() {
            return Recorded::Yes;
        }
        let version = there.and_then(|(record, _)| record.resource_version.clone());
        let is_under_way =
            |sent: &Sent| sent.version == version && sent.node != name(node) && at < sent.at.saturating_add(SENT);
        if self.sent.as_ref().is_some_and(is_under_way) {
            return if changes.contains_key(name(node)) {
                Recorded::Later
            } else {
                Recorded::Yes
            };
        }
        self.sent = Some(Sent {
            version,
            node: name(node).to_owned(),
            at,
        });
        let mut gone = had.iter().filter(|(node, _)| !given.contains_key(*node)).peekable();
        if gone.peek().is_some() {
            let all = given.values().flat_map(|given| &given.ranges);
            let all: BTreeSet<&str> = all.map(String::as_str).collect();
            // Other nodes have theirs.
            gone.filter(|(_, ranges)| ranges.split(',').all(|range| all.contains(range)))
                .for_each(|(node, _)| drop(changes.insert(node.clone(), None)));
        }
        Recorded::By(match there {
            Some((record, _)) => {
                let target = Target {
                    resource: CONFIG_MAPS,
                    namespace: NAMESPACE.to_owned(),
                    name: RECORD.to_owned(),
                    uid: record.uid.clone().unwrap_or_default(),
                };
                target.merge(json!({ "data": changes }))
            }
            None => Step::Create {
                resource: CONFIG_MAPS,
                namespace: NAMESPACE.to_owned(),
                body: Box::new(json!({ "metadata": { "name": RECORD, "namespace": NAMESPACE }, "data": changes })),
                outcome: Outcome::default(),
            },
        })
    }

    /// Records a node's CIDRs; true if it has any.
    pub fn has(&mut self, node: &Node) -> bool {
        let own: Vec<String> = used(node).map(str::to_owned).collect();
        let has = !own.is_empty();
        if has {
            match self.given.get_mut(name(node)) {
                Some(given) if given.ranges == own => given.new = false,
                _ => {
                    // What others were given meanwhile may overlap.
                    for other in self.given.values_mut() {
                        other.new = false;
                    }
                    self.unrecorded.insert(name(node).to_owned());
                    self.given.insert(name(node).to_owned(), Given::of(own, false));
                }
            }
        }
        has
    }

    /// Allocates a CIDR of each range to `node`, which has none, such that no pod of another node
    /// can have an address in it, and no machine has: the node's previous one or the one it
    /// reports, else the lowest that was never allocated, else the one that has been unused for
    /// longest; these two are no part of a machine's network, either. `None` if none is left.
    pub fn give(&mut self, node: &Node, nodes: &[&Node], pods: &[&Pod]) -> Option<Step> {
        if self.pools.is_empty() {
            return None;
        }
        let own = name(node);
        if let Some(known) = self.given.get(own).filter(|known| known.new) {
            return Some(assign(node, &known.ranges));
        }
        self.release(nodes, pods);
        let others = self.given.iter().filter(|(other, _)| *other != own);
        let mut taken: Vec<Cidr> = others.flat_map(|(_, given)| &given.parsed).copied().collect();
        // Agents make no routes to CIDRs with addresses of machines.
        let mut links: Vec<Cidr> = Vec::new();
        for machine in nodes.iter().copied().chain([node]) {
            if name(machine) != own {
                taken.extend(used(machine).filter_map(|range| range.parse::<Cidr>().ok()));
            }
            taken.extend(addresses(machine).map(Cidr::whole));
            links.extend(self::links(machine));
        }
        let pods = pods.iter().filter(|pod| node_of(pod).is_some_and(|node| node != own));
        let held = pods.flat_map(|pod| &pod.status.addresses);
        taken.extend(held.filter_map(|text| text.parse().ok()).map(Cidr::whole));
        let had = self.given.get(own).into_iter().flat_map(|had| &had.ranges);
        let had = had.map(String::as_str);
        let told = node.metadata.annotations.as_ref().and_then(|all| all.get(USED));
        let told = told.into_iter().flat_map(|told| told.split(',').map(str::trim));
        let wanted: Vec<&str> = had.chain(told).collect();
        let each = self.pools.iter().map(|pool| {
            let taken = Taken::of(pool, &taken);
            let wanted = wanted.iter().find(|wanted| pool.may_give(wanted, &taken));
            let taken = taken.and(pool, &links);
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
        self.unrecorded.insert(own.to_owned());
        let step = assign(node, &ranges);
        self.given.insert(own.to_owned(), Given::of(ranges, true));
        Some(step)
    }

    /// Releases the CIDRs of nodes that are gone with all their pods.
    fn release(&mut self, nodes: &[&Node], pods: &[&Pod]) {
        let mut present: Vec<&str> = nodes.iter().map(|node| name(*node)).collect();
        present.sort_unstable();
        let mut present = present.into_iter().peekable();
        let is_gone = |node: &&String| {
            while present.next_if(|next| *next < node.as_str()).is_some() {}
            present.peek() != Some(&node.as_str())
        };
        let gone: Vec<String> = self.given.keys().filter(is_gone).cloned().collect();
        if gone.is_empty() {
            return;
        }
        let alive: HashSet<&str> = pods.iter().filter_map(|pod| node_of(pod)).collect();
        for node in gone.iter().filter(|node| !alive.contains(node.as_str())) {
            for range in self.given.remove(node).into_iter().flat_map(|given| given.ranges) {
                self.released.retain(|known| *known != range);
                self.released.push(range);
            }
        }
    }
}

/// The step that gives CIDRs to a node.
fn assign(node: &Node, ranges: &[String]) -> Step {
    target(NODES, node).merge(json!({
        "metadata": { "uid": node.metadata.uid },
        "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges },
    }))
}

impl PodRange {
    /// The lowest CIDR that overlaps no taken one and was not used before.
    fn free(&self, taken: &Taken, released: &[String]) -> Option<String> {
        let parts = self.node_prefix.checked_sub(self.range.prefix)?;
        let rest = u32::from(self.range.host_bits().checked_sub(parts)?);
        // No cluster has more nodes than this.
        let mut parts = 0..1_u128 << parts.min(16);
        parts.find_map(|part| {
            let address = self.range.at(part.checked_shl(rest)?).address;
            if taken.overlaps(address) {
                return None;
            }
            let text = format!("{address}/{}", self.node_prefix);
            (!released.contains(&text)).then_some(text)
        })
    }

    /// True if a CIDR is a free part of this range.
    fn may_give(&self, range: &str, taken: &Taken) -> bool {
        range.parse().is_ok_and(|Cidr { address, prefix }: Cidr| {
            prefix == self.node_prefix && self.range.contains(address) && !taken.overlaps(address)
        })
    }
}

/// Taken parts of a range, by their first addresses.
struct Taken {
    prefix: u8,
    parts: BTreeSet<IpAddr>,
    /// CIDRs larger than a part.
    larger: Vec<Cidr>,
}

impl Taken {
    fn of(pool: &PodRange, taken: &[Cidr]) -> Self {
        let own = taken.iter().filter(|other| other.is_ipv6() == pool.range.is_ipv6());
        let (larger, parts): (Vec<Cidr>, Vec<Cidr>) = own.copied().partition(|other| other.prefix < pool.node_prefix);
        let prefix = pool.node_prefix;
        let part = |other: Cidr| Cidr { prefix, ..other }.network();
        Self {
            prefix,
            parts: parts.into_iter().map(part).collect(),
            larger,
        }
    }

    /// With networks inside the range. One that contains all of it leaves its other addresses to
    /// pods.
    fn and(mut self, pool: &PodRange, links: &[Cidr]) -> Self {
        let inner = links.iter().filter(|link| link.prefix > pool.range.prefix);
        let inner: Vec<Cidr> = inner.copied().collect();
        let more = Self::of(pool, &inner);
        self.parts.extend(more.parts);
        self.larger.extend(more.larger);
        self
    }

    /// True if a part overlaps a CIDR that is taken.
    fn overlaps(&self, part: IpAddr) -> bool {
        let own = Cidr {
            address: part,
            prefix: self.prefix,
        };
        self.parts.contains(&own.network()) || self.larger.iter().any(|other| other.contains(part))
    }
}

/// Pod CIDRs of a node.
fn used(node: &Node) -> impl Iterator<Item = &str> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    let first = spec.and_then(|spec| spec.pod_cidr.as_ref()).filter(|_| all.is_empty());
    let each = all.iter().chain(first);
    each.map(String::as_str).filter(|text| !text.is_empty())
}

/// Addresses of a node's machine: the first of each family.
fn addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = all.filter(|address| address.type_ == "InternalIP");
    let internal = internal.filter_map(|address| address.address.parse::<IpAddr>().ok());
    let first = move |v6: bool| internal.clone().find(|address| address.is_ipv6() == v6);
    [false, true].into_iter().filter_map(first)
}

/// Ranges of the links of a node's machine.
fn links(node: &Node) -> impl Iterator<Item = Cidr> {
    let told = node.metadata.annotations.iter().filter_map(|all| all.get(LINKS));
    told.flat_map(|told| told.split(','))
        .filter_map(|range| range.parse().ok())
}
