//! Topology spread constraints: limits on how unevenly matching pods are spread over zones, hosts,
//! and so on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, TopologySpreadConstraint};

use super::filters::untolerated;
use super::inter_pod_affinity::domain;
use super::{Misfit, Placed, SchedulerCache, affinity};
use crate::objects::{Map, Meta as _, is_empty, matches, name};
use crate::pod::Pod;

struct Constraint<'a> {
    of: &'a TopologySpreadConstraint,
    /// 1 if the pod itself matches the selector, else 0.
    own: i64,
    /// The value of the topology key on each eligible node.
    eligible: BTreeMap<&'a str, &'a str>,
    counts: BTreeMap<&'a str, i64>,
    least: i64,
}

/// The constraints of one pod with their counts.
pub(super) struct Spread<'a> {
    pod: &'a Pod,
    constraints: Vec<Constraint<'a>>,
}

impl<'a> Spread<'a> {
    pub(super) fn of(cache: &'a SchedulerCache, pod: &'a Pod) -> Self {
        let constraints = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.topology_spread_constraints.as_deref())
            .unwrap_or_default();
        Self {
            pod,
            constraints: constraints
                .iter()
                .map(|constraint| Constraint::of(cache, pod, constraint, constraints))
                .collect(),
        }
    }

    /// Adds (`1`) or removes (`-1`) a pod.
    pub(super) fn shift(&mut self, placed: &Placed, sign: i64) {
        for constraint in &mut self.constraints {
            if constraint.count(self.pod, placed, sign) {
                constraint.settle();
            }
        }
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Misfit> {
        for constraint in self.constraints.iter().filter(|constraint| is_hard(constraint.of)) {
            let Some(value) = domain(node, &constraint.of.topology_key) else {
                let reason = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Misfit::unresolvable(reason));
            };
            let here = constraint.counts.get(value).copied().unwrap_or(0);
            if here.saturating_add(constraint.own).saturating_sub(constraint.least) > i64::from(constraint.of.max_skew)
            {
                return Err(Misfit::resolvable(
                    "node(s) didn't match pod topology spread constraints",
                ));
            }
        }
        Ok(())
    }

    /// The sum of the skews of the soft constraints; a node without one of their keys comes last.
    pub(super) fn skew(&self, node: &Node) -> i64 {
        let soft = self.constraints.iter().filter(|constraint| !is_hard(constraint.of));
        let skews = soft.map(|constraint| {
            let value = domain(node, &constraint.of.topology_key)?;
            let here = constraint.counts.get(value).copied().unwrap_or(0);
            Some(here.saturating_sub(constraint.least))
        });
        skews.sum::<Option<i64>>().unwrap_or(i64::MAX)
    }
}

impl<'a> Constraint<'a> {
    fn of(
        cache: &'a SchedulerCache,
        pod: &Pod,
        constraint: &'a TopologySpreadConstraint,
        all: &[TopologySpreadConstraint],
    ) -> Self {
        let eligible: BTreeMap<&str, &str> = cache
            .nodes()
            .filter(|(node, _)| is_eligible(pod, node, constraint) && has_keys(node, constraint, all))
            .filter_map(|(node, _)| Some((name(&**node), domain(node, &constraint.topology_key)?)))
            .collect();
        let mut this = Self {
            of: constraint,
            own: 0,
            counts: eligible.values().map(|value| (*value, 0)).collect(),
            eligible,
            least: 0,
        };
        this.own = i64::from(this.selects(pod, pod.metadata.labels()));
        for placed in cache.pods() {
            this.count(pod, placed, 1);
        }
        this.settle();
        this
    }

    fn selects(&self, pod: &Pod, labels: Option<&Map>) -> bool {
        let own = pod.metadata.labels();
        let selector = self.of.label_selector.as_ref();
        selector.is_some_and(|selector| matches(selector, labels))
            && self.of.match_label_keys.iter().flatten().all(|key| {
                let ours = own.and_then(|own| own.get(key));
                ours.is_none() || ours == labels.and_then(|labels| labels.get(key))
            })
    }

    /// True if the selector has no requirements: it counts no pods (`countPodsMatchSelector`,
    /// `pkg/scheduler/framework/plugins/podtopologyspread/common.go`).
    fn is_empty(&self, pod: &Pod) -> bool {
        let own = pod.metadata.labels();
        let has = |key: &String| own.is_some_and(|own| own.contains_key(key));
        let selector = self.of.label_selector.as_ref();
        selector.is_some_and(is_empty) && !self.of.match_label_keys.iter().flatten().any(has)
    }

    /// Counts an existing pod; returns whether any constraint matches it.
    fn count(&mut self, pod: &Pod, placed: &Placed, sign: i64) -> bool {
        let counted = placed.pod.metadata.namespace() == pod.metadata.namespace()
            && !placed.pod.metadata.is_deleting()
            && !self.is_empty(pod)
            && self.selects(pod, placed.pod.metadata.labels());
        let value = self.eligible.get(placed.node.as_str()).filter(|_| counted);
        let here = value.and_then(|value| self.counts.get_mut(value));
        if let Some(here) = here {
            *here = here.saturating_add(sign);
            return true;
        }
        false
    }

    /// Updates the minimum of each constraint.
    fn settle(&mut self) {
        let few = self
            .of
            .min_domains
            .is_some_and(|least| i64::try_from(self.counts.len()).unwrap_or(0) < i64::from(least));
        let least = self.counts.values().min().copied().unwrap_or(0);
        self.least = if few { 0 } else { least };
    }
}

fn is_hard(constraint: &TopologySpreadConstraint) -> bool {
    constraint.when_unsatisfiable != "ScheduleAnyway"
}

/// True if a node has the topology keys of all hard, or of all soft, constraints; others are not
/// counted (`pkg/scheduler/framework/plugins/podtopologyspread/filtering.go`).
fn has_keys(node: &Node, constraint: &TopologySpreadConstraint, all: &[TopologySpreadConstraint]) -> bool {
    all.iter()
        .filter(|other| is_hard(other) == is_hard(constraint))
        .all(|other| domain(node, &other.topology_key).is_some())
}

fn is_eligible(pod: &Pod, node: &Node, constraint: &TopologySpreadConstraint) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return true };
    let affine = constraint.node_affinity_policy.as_deref() == Some("Ignore") || affinity::required(spec, node);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let clean = constraint.node_taints_policy.as_deref() != Some("Honor")
        || untolerated(node, tolerations, &["NoSchedule", "NoExecute"]).is_none();
    affine && clean
}
