//! Whom a pod displaces: on the node where it costs least, as few and as unimportant pods as will do.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::policy::v1::PodDisruptionBudget, jiff::Timestamp};
use serde_json::json;

use super::{Board, Claims, Needs};
use crate::{
    objects::{Meta as _, matches, name, seconds, target, uid},
    pod::Pod,
    step::{Note, Outcome, PODS, PatchKind, Plan, Severity, Step},
};

/// Who must go from where.
#[derive(Debug, Clone, PartialEq)]
pub struct Displacement {
    /// The node.
    pub node: String,
    /// The pods that leave it.
    pub victims: Vec<Arc<Pod>>,
}

/// What a displacement costs; the order of the fields is the policy.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Pods whose budget does not allow it.
    broken: usize,
    /// The priority of the most important one …
    highest: i32,
    /// … and of all together, counted from the least that there is, so that many cost more than few.
    sum: i64,
    count: usize,
    /// Of the most important ones the oldest: better one that has not run for long.
    oldest: Reverse<Option<Timestamp>>,
}

/// A pod's priority.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// A pod that may have to go.
struct Candidate {
    pod: Arc<Pod>,
    assumed: bool,
    breaks: bool,
}

impl Board {
    /// Finds room for a pod that fits nowhere. The board is the same afterwards.
    pub fn displace(
        &mut self,
        pod: &Pod,
        claims: &Claims,
        budgets: &[Arc<PodDisruptionBudget>],
    ) -> Option<Displacement> {
        if !self.outranks(pod) {
            return None;
        }
        let mut below: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
        for placed in self.pods().filter(|placed| priority(&placed.pod) < priority(pod)) {
            below.entry(placed.node.clone()).or_default().push(Candidate {
                pod: placed.pod.clone(),
                assumed: placed.assumed,
                breaks: false,
            });
        }
        let needs = Needs::of(pod);
        let mut best: Option<(Cost, Displacement)> = None;
        for (node, mut candidates) in below {
            candidates.sort_by_key(|candidate| importance(&candidate.pod));
            mark(&mut candidates, budgets);
            for candidate in &candidates {
                self.lift(uid(&*candidate.pod));
            }
            let found = self.spare((pod, &needs, claims), &node, &candidates);
            for candidate in &candidates {
                if self.find(uid(&*candidate.pod)).is_none() {
                    self.place(&candidate.pod, &node, candidate.assumed);
                }
            }
            let Some((cost, victims)) = found else { continue };
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, Displacement { node, victims }));
            }
        }
        best.map(|(_, displacement)| displacement)
    }

    /// Puts back on the node, from which all candidates were lifted, all that can stay beside the pod: first those whose
    /// budgets want it, and of these and the others the most important first.
    fn spare(
        &mut self,
        (pod, needs, claims): (&Pod, &Needs, &Claims),
        node: &str,
        candidates: &[Candidate],
    ) -> Option<(Cost, Vec<Arc<Pod>>)> {
        if !self.admits(pod, needs, claims, node) {
            return None;
        }
        let (breaking, calm): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| candidate.breaks);
        let mut victims: Vec<Arc<Pod>> = Vec::new();
        let mut broken = 0;
        for candidate in breaking.into_iter().chain(calm) {
            self.place(&candidate.pod, node, candidate.assumed);
            if !self.admits(pod, needs, claims, node) {
                self.lift(uid(&*candidate.pod));
                victims.push(candidate.pod.clone());
                broken += usize::from(candidate.breaks);
            }
        }
        let highest = victims.iter().map(|victim| priority(victim)).max()?;
        let top = victims.iter().filter(|victim| priority(victim) == highest);
        let least = i64::from(i32::MIN);
        let cost = Cost {
            broken,
            highest,
            sum: victims.iter().map(|victim| i64::from(priority(victim)) - least).sum(),
            count: victims.len(),
            oldest: Reverse(top.filter_map(|victim| victim.metadata.created).min()),
        };
        Some((cost, victims))
    }
}

/// Sorts the most important first: by priority, then those that are older.
fn importance(pod: &Pod) -> (Reverse<i32>, Option<Timestamp>) {
    (Reverse(priority(pod)), pod.metadata.created)
}

/// Marks those whose going their budgets do not allow, given that all before them go too.
fn mark(candidates: &mut [Candidate], budgets: &[Arc<PodDisruptionBudget>]) {
    let mut left: Vec<(&PodDisruptionBudget, i32)> = budgets
        .iter()
        .map(|budget| {
            let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed);
            (&**budget, allowed.unwrap_or(0))
        })
        .collect();
    for candidate in candidates {
        for (_, left) in left.iter_mut().filter(|(budget, _)| guards(budget, &candidate.pod)) {
            *left = left.saturating_sub(1);
            candidate.breaks |= *left < 0;
        }
    }
}

/// Whether a budget counts a pod that has not been allowed to go already.
fn guards(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let chosen = selector.is_some_and(|selector| {
        let is_empty = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        !is_empty && matches(selector, pod.metadata.labels())
    });
    let disrupted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    chosen
        && budget.metadata.namespace.as_deref() == Some(pod.metadata.namespace())
        && disrupted.is_none_or(|disrupted| !disrupted.contains_key(name(pod)))
}

impl Displacement {
    /// Marks the victims, and then deletes them.
    pub fn plan(&self, pod: &Pod, scheduler: &str, now: Timestamp) -> Plan {
        let going = self.victims.iter().filter(|victim| !victim.metadata.is_deleting());
        let (marks, deletions) = going.map(|victim| self.steps(victim, pod, scheduler, now)).unzip();
        let mut plan = Plan::default();
        plan.stage(marks);
        plan.stage(deletions);
        plan
    }

    fn steps(&self, victim: &Pod, pod: &Pod, scheduler: &str, now: Timestamp) -> (Step, Step) {
        let about = target(PODS, victim);
        let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
        let mark = Step::Patch {
            target: about.clone(),
            subresource: Some("status"),
            kind: PatchKind::Strategic,
            body: Box::new(json!({
                "metadata": { "uid": uid(victim) },
                "status": { "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                    "message": message, "lastProbeTime": null, "lastTransitionTime": seconds(now),
                }] },
            })),
            outcome: Outcome::default(),
        };
        let note = Note {
            about: about.reference(),
            severity: Severity::Normal,
            reason: "Preempted",
            message: format!("Preempted by pod {} on node {}", uid(pod), self.node),
        };
        let delete = Step::Delete {
            target: about,
            resource_version: None,
            propagation: None,
            grace_seconds: None,
            outcome: Outcome {
                done: Some(note),
                failed: None,
            },
        };
        (mark, delete)
    }
}
