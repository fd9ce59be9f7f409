//! Topology spread constraints: how uneven the matching pods may lie over zones, hosts, and so on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, TopologySpreadConstraint};

use super::{Board, Misfit, affinity, filters::untolerated, neighbours::domain};
use crate::objects::{Map, Meta as _, matches, name};
use crate::pod::Pod;

struct Constraint<'a> {
    key: &'a str,
    max_skew: i64,
    hard: bool,
    /// Whether the pod itself counts.
    own: i64,
    counts: BTreeMap<&'a str, i64>,
    least: i64,
}

/// The constraints of one pod, counted.
pub(super) struct Spread<'a> {
    constraints: Vec<Constraint<'a>>,
}

impl<'a> Spread<'a> {
    pub(super) fn of(board: &'a Board, pod: &'a Pod) -> Self {
        let constraints = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.topology_spread_constraints.as_deref());
        Self {
            constraints: constraints
                .into_iter()
                .flatten()
                .map(|constraint| count(board, pod, constraint))
                .collect(),
        }
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Misfit> {
        for constraint in self.constraints.iter().filter(|constraint| constraint.hard) {
            let Some(value) = domain(node, constraint.key) else {
                let reason = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Misfit::unresolvable(reason));
            };
            let here = constraint.counts.get(value).copied().unwrap_or(0);
            if here.saturating_add(constraint.own).saturating_sub(constraint.least) > constraint.max_skew {
                return Err(Misfit::resolvable(
                    "node(s) didn't match pod topology spread constraints",
                ));
            }
        }
        Ok(())
    }

    /// The sum of the skews of the soft constraints.
    pub(super) fn skew(&self, node: &Node) -> i64 {
        let soft = self.constraints.iter().filter(|constraint| !constraint.hard);
        let skews = soft.map(|constraint| {
            let here = domain(node, constraint.key)
                .and_then(|value| constraint.counts.get(value))
                .copied();
            here.unwrap_or(0).saturating_sub(constraint.least)
        });
        skews.sum()
    }
}

fn count<'a>(board: &'a Board, pod: &'a Pod, constraint: &'a TopologySpreadConstraint) -> Constraint<'a> {
    let key = constraint.topology_key.as_str();
    let own_labels = pod.metadata.labels();
    let selected = |labels: Option<&Map>| {
        constraint
            .label_selector
            .as_ref()
            .is_some_and(|selector| matches(selector, labels))
            && constraint.match_label_keys.iter().flatten().all(|key| {
                let ours = own_labels.and_then(|own| own.get(key));
                ours.is_none() || ours == labels.and_then(|labels| labels.get(key))
            })
    };
    let eligible: BTreeMap<&str, &str> = board
        .nodes()
        .filter(|(node, _)| is_eligible(pod, node, constraint))
        .filter_map(|(node, _)| Some((name(&**node), domain(node, key)?)))
        .collect();
    let mut counts: BTreeMap<&str, i64> = eligible.values().map(|value| (*value, 0)).collect();
    for placed in board.pods() {
        let counted = placed.pod.metadata.namespace() == pod.metadata.namespace()
            && !placed.pod.metadata.is_deleting()
            && selected(placed.pod.metadata.labels());
        if let Some(value) = eligible.get(placed.node.as_str()).filter(|_| counted) {
            *counts.entry(value).or_default() += 1;
        }
    }
    let few = constraint
        .min_domains
        .is_some_and(|least| i64::try_from(counts.len()).unwrap_or(0) < i64::from(least));
    Constraint {
        key,
        max_skew: i64::from(constraint.max_skew),
        hard: constraint.when_unsatisfiable != "ScheduleAnyway",
        own: i64::from(selected(own_labels)),
        least: if few {
            0
        } else {
            counts.values().min().copied().unwrap_or(0)
        },
        counts,
    }
}

fn is_eligible(pod: &Pod, node: &Node, constraint: &TopologySpreadConstraint) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return true };
    let affine = constraint.node_affinity_policy.as_deref() == Some("Ignore") || affinity::required(spec, node);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let clean = constraint.node_taints_policy.as_deref() != Some("Honor")
        || untolerated(node, tolerations, &["NoSchedule", "NoExecute"]).is_none();
    affine && clean
}
