//! Preemption: chooses the node where it costs least, and as few victims of as low a priority as
//! possible.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;

use super::schedule::Judge;
use super::{Claims, Place, Placed, PodRequests, SchedulerCache, Unplaceable, priority};
use crate::node::departure::{Why, delete, mark};
use crate::objects::{Meta as _, matches, name, uid};
use crate::pod::Pod;
use crate::step::Plan;

/// A preemption: a node and its victims.
#[derive(Debug, Clone, PartialEq)]
pub struct Displacement {
    /// The node.
    pub node: String,
    /// The pods to evict.
    pub victims: Vec<Arc<Pod>>,
}

/// Cost of a preemption; the order of the fields is the policy.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Victims whose disruption budget would be violated.
    broken: usize,
    /// The highest priority of a victim …
    highest: i32,
    /// … and the sum of all priorities, counted from the lowest possible, so that many cost more
    /// than few.
    sum: i64,
    count: usize,
    /// Start of the oldest victim of the highest priority: better one that has not run for long.
    oldest: Reverse<Option<Timestamp>>,
}

/// A pod that may be preempted.
struct Candidate<'a> {
    placed: &'a Placed,
    breaks: bool,
}

/// Nodes that are examined for preemption: a minimum, and a percentage of all (upstream's defaults of
/// `minCandidateNodesAbsolute` and `minCandidateNodesPercentage`).
const ENOUGH: (usize, usize) = (100, 10);

impl SchedulerCache {
    /// Nominates a node for a pod. Until the pod is bound, its room is denied to pods of the same
    /// or a lower priority. Nominations of pods of lower priority for the same node are dropped.
    pub fn promise(&mut self, pod: &Arc<Pod>, displacement: &Displacement) {
        let node = &displacement.node;
        let least = priority(pod);
        self.promises
            .retain(|_, other| other.placed.node != *node || priority(&other.placed.pod) >= least);
        let victims = displacement.victims.iter().map(|victim| uid(&**victim).to_owned());
        self.keep(pod, node, victims.collect());
    }

    /// Finds room for an unschedulable pod. `why` must be this cache's own result.
    pub fn displace(
        &self,
        pod: &Pod,
        claims: &Claims,
        budgets: &[Arc<PodDisruptionBudget>],
        why: &Unplaceable,
    ) -> Option<Displacement> {
        let (needs, least) = (PodRequests::of(pod), priority(pod));
        // Cheap checks first: nodes where other pods are the cause, and where their removal would
        // be enough.
        let mut below: BTreeMap<&str, Vec<Candidate<'_>>> = BTreeMap::new();
        let nodes = self.nodes().zip(&why.misfits);
        for ((node, place), _) in nodes.filter(|(_, misfit)| misfit.resolvable) {
            let node = name(&**node);
            if self.promised(pod, node, place).suffices_without(least, &needs) {
                below.insert(node, Vec::new());
            }
        }
        if below.is_empty() {
            return None;
        }
        for placed in self.pods().filter(|placed| priority(&placed.pod) < least) {
            if let Some(candidates) = below.get_mut(placed.node.as_str()) {
                candidates.push(Candidate { placed, breaks: false });
            }
        }
        let mut judge = Judge::new(self, pod, &needs, claims);
        let mut best: Option<(Cost, Displacement)> = None;
        let mut enough = ENOUGH.0.max(why.misfits.len().saturating_mul(ENOUGH.1) / 100);
        for (node, mut candidates) in from_anywhere(below, uid(pod)) {
            candidates.sort_by_key(|candidate| importance(&candidate.placed.pod));
            weigh(&mut candidates, budgets);
            let Some((cost, victims)) = self.spare(pod, &mut judge, node, &candidates) else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                let node = node.to_owned();
                best = Some((cost, Displacement { node, victims }));
            }
            enough = enough.saturating_sub(1);
            if enough == 0 {
                break;
            }
        }
        best.map(|(_, displacement)| displacement)
    }

    /// Removes all candidates from the node in this calculation, and then puts back those that fit
    /// beside the pod: first those protected by budgets, and within each group the most important
    /// first. The judge's state is restored afterwards.
    fn spare<'a>(
        &'a self,
        pod: &Pod,
        judge: &mut Judge<'a>,
        node: &str,
        candidates: &[Candidate<'a>],
    ) -> Option<(Cost, Vec<Arc<Pod>>)> {
        let (own, place) = self.at(node)?;
        let mut place = self.promised(pod, node, place).into_owned();
        let shift = |judge: &mut Judge<'a>, place: &mut Place, candidate: &Candidate<'a>, sign| {
            place.take(candidate.placed, sign);
            judge.shift(candidate.placed, own, sign);
        };
        for candidate in candidates {
            shift(judge, &mut place, candidate, -1);
        }
        let helps = judge.check(own, &place).is_ok();
        let (breaking, calm): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| candidate.breaks);
        let mut victims: Vec<&Candidate<'a>> = Vec::new();
        for candidate in breaking.into_iter().chain(calm) {
            shift(judge, &mut place, candidate, 1);
            if helps && judge.check(own, &place).is_err() {
                shift(judge, &mut place, candidate, -1);
                victims.push(candidate);
            }
        }
        for victim in &victims {
            judge.shift(victim.placed, own, 1);
        }
        let pods = victims.iter().map(|victim| &victim.placed.pod);
        let highest = pods.clone().map(|victim| priority(victim)).max()?;
        let top = pods.clone().filter(|victim| priority(victim) == highest);
        let least = i64::from(i32::MIN);
        let cost = Cost {
            broken: victims.iter().filter(|victim| victim.breaks).count(),
            highest,
            sum: pods.clone().map(|victim| i64::from(priority(victim)) - least).sum(),
            count: victims.len(),
            oldest: Reverse(top.filter_map(|victim| victim.metadata.created).min()),
        };
        Some((cost, pods.cloned().collect()))
    }
}

/// The nodes in order, starting at one that depends on the pod's uid, so that in large clusters
/// preemption does not always hit the first nodes.
fn from_anywhere<'a, T>(nodes: BTreeMap<&'a str, T>, uid: &str) -> impl Iterator<Item = (&'a str, T)> {
    let start = if nodes.len() > ENOUGH.0 {
        let sum = uid
            .bytes()
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        sum % nodes.len()
    } else {
        0
    };
    let mut nodes: Vec<_> = nodes.into_iter().collect();
    nodes.rotate_left(start);
    nodes.into_iter()
}

/// Sort key, the most important pod first: by priority, then by age.
fn importance(pod: &Pod) -> (Reverse<i32>, Option<Timestamp>) {
    (Reverse(priority(pod)), pod.metadata.created)
}

/// Marks candidates whose disruption budgets would be violated, given that all before them are
/// evicted too.
fn weigh(candidates: &mut [Candidate<'_>], budgets: &[Arc<PodDisruptionBudget>]) {
    let mut left: Vec<(&PodDisruptionBudget, i32)> = budgets
        .iter()
        .map(|budget| {
            let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed);
            (&**budget, allowed.unwrap_or(0))
        })
        .collect();
    for candidate in candidates {
        for (_, left) in left
            .iter_mut()
            .filter(|(budget, _)| guards(budget, &candidate.placed.pod))
        {
            *left = left.saturating_sub(1);
            candidate.breaks |= *left < 0;
        }
    }
}

/// True if a budget covers the pod and has not already counted its disruption. An empty selector
/// covers all pods of the namespace, a missing one none.
fn guards(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let chosen = selector.is_some_and(|selector| matches(selector, pod.metadata.labels()));
    let disrupted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    chosen
        && budget.metadata.namespace.as_deref() == Some(pod.metadata.namespace())
        && disrupted.is_none_or(|disrupted| !disrupted.contains_key(name(pod)))
}

impl Displacement {
    /// Adds the `DisruptionTarget` condition to the victims, and then deletes them.
    pub fn plan(&self, pod: &Pod, scheduler: &str, now: Timestamp) -> Plan {
        let going = self.victims.iter().filter(|victim| !victim.metadata.is_deleting());
        let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
        let why = Why {
            reason: "PreemptionByScheduler",
            message: &message,
            phase: None,
        };
        let said = format!("Preempted by pod {} on node {}", uid(pod), self.node);
        let steps = going.map(|victim| (mark(victim, why, now), delete(victim, "Preempted", said.clone())));
        let (marks, deletions) = steps.unzip();
        let mut plan = Plan::default();
        plan.stage(marks);
        plan.stage(deletions);
        plan
    }
}
