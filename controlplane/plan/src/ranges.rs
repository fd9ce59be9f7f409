//! Which range of pod addresses each node gets.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::{
    objects::{name, target},
    step::{NODES, Outcome, PatchKind, Step},
};

/// The length of a node's prefix: 254 pods.
const NODE_PREFIX: u8 = 24;

/// The cluster's range, and what has been given to whom.
#[derive(Debug)]
pub struct Ranges {
    network: u32,
    count: u32,
    given: BTreeMap<String, String>,
}

impl Ranges {
    /// A range such as `10.244.0.0/16`.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Self {
        let bits = u32::from(NODE_PREFIX.saturating_sub(prefix.min(NODE_PREFIX)));
        let mask = u32::MAX
            .checked_shl(32_u32.saturating_sub(u32::from(prefix.min(32))))
            .unwrap_or(0);
        Self {
            network: u32::from(address) & mask,
            count: 1_u32.checked_shl(bits).unwrap_or(0),
            given: BTreeMap::new(),
        }
    }

    /// Gives `node` the lowest range that none of `nodes` has and that was not given before. `None` where it has one,
    /// or where none is left.
    pub fn give(&mut self, node: &Node, nodes: &[&Node]) -> Option<Step> {
        let used = |node: &Node| {
            node.spec
                .as_ref()
                .and_then(|spec| spec.pod_cidr.clone())
                .filter(|text| !text.is_empty())
        };
        if used(node).is_some() {
            return None;
        }
        let present: BTreeSet<&str> = nodes.iter().map(|node| name(*node)).collect();
        self.given.retain(|node, _| present.contains(node.as_str()));
        let range = if let Some(range) = self.given.get(name(node)) {
            range.clone()
        } else {
            let mut taken: BTreeSet<String> = nodes.iter().filter_map(|node| used(node)).collect();
            taken.extend(self.given.values().cloned());
            (0..self.count)
                .map(|index| self.range(index))
                .find(|range| !taken.contains(range))?
        };
        self.given.insert(name(node).to_owned(), range.clone());
        Some(Step::Patch {
            target: target(NODES, node),
            subresource: None,
            kind: PatchKind::Merge,
            body: Box::new(json!({
                "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
                "spec": { "podCIDR": range, "podCIDRs": [range] },
            })),
            outcome: Outcome::default(),
        })
    }

    fn range(&self, index: u32) -> String {
        let size = 1_u32 << (32 - u32::from(NODE_PREFIX));
        let address = self.network.wrapping_add(index.wrapping_mul(size));
        format!("{}/{NODE_PREFIX}", Ipv4Addr::from(address))
    }
}
