//! `StatefulSet`s: pods with stable names and their own claims, created and deleted in the order of
//! their ordinals.
//!
//! The rules are those of upstream's `pkg/controller/statefulset/stateful_set_control.go`:
//! 1. Replicas in order: a finished one is deleted, a missing one created, an unavailable one
//!    waited for.
//! 2. Pods beyond the range are deleted, the highest ordinal first.
//! 3. Pods of another revision are deleted, the highest ordinal first, down to the partition.

mod claims;
mod pods;
mod revisions;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;

use crate::objects::{Meta as _, controller_of, name, selects, target};
use crate::pod::Pod;
use crate::pod::{available_in, is_finished, phase};
use crate::step::{CONTROLLER_REVISIONS, PODS, Plan, STATEFUL_SETS, Step, Target};
pub use crate::workloads::backoff::Backoff;
use crate::workloads::claim::claim;
use crate::workloads::history;
use crate::workloads::replicas::BURST;
pub use crate::workloads::rollout::Failure;
use revisions::{Revisions, Version};

/// The StatefulSet and everything that its plan reads.
pub struct Snapshot<'a> {
    /// The StatefulSet.
    pub set: &'a StatefulSet,
    /// All revisions of its namespace: some are its own, some may be adopted, and names must not
    /// collide.
    pub revisions: &'a [&'a ControllerRevision],
    /// Its pods and the namespace's pods without a manager.
    pub pods: &'a [&'a Pod],
    /// Looks up a claim by its name in the set's namespace.
    pub claims: &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    /// The server's last refusal of a creation.
    pub failure: Option<&'a Failure>,
}

/// State of one StatefulSet while its plan is made.
struct View<'a> {
    snapshot: &'a Snapshot<'a>,
    spec: &'a StatefulSetSpec,
    owner: Target,
    revisions: Revisions<'a>,
    templates: BTreeMap<&'a str, &'a PersistentVolumeClaim>,
    /// Its pods by ordinal, in the range and beyond it.
    replicas: BTreeMap<i32, &'a Pod>,
    condemned: BTreeMap<i32, &'a Pod>,
    now: Timestamp,
}

/// Steps in order; each stage must succeed before the next.
#[derive(Default)]
struct Work {
    /// Claims of pods to create, and owner references of claims whose pods are deleted.
    claims: Vec<Step>,
    /// Creations and deletions of pods.
    pods: Vec<Step>,
    /// Corrections of existing pods; no other step depends on them.
    corrections: Vec<Step>,
    made: usize,
    /// Times for which failed pods are kept.
    again: Vec<Duration>,
    /// Number of pods deleted because of their old revision.
    outdated: i32,
}

/// Makes the plan. `backoff` remembers the failed pods that were deleted.
pub fn plan(snapshot: &Snapshot<'_>, backoff: &mut Backoff, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = snapshot.set.spec.as_ref() else {
        return plan;
    };
    let owner = target(STATEFUL_SETS, snapshot.set);
    let deleted = snapshot.set.metadata.deletion_timestamp.is_some();
    // A revision whose labels no longer match stays owned, but does not count.
    let selected = |revision: &ControllerRevision| selects(&spec.selector, revision.metadata.labels.as_ref());
    let revisions = claim(
        &owner,
        deleted,
        |revision| controller_of(&revision.metadata).is_some() || selected(revision),
        CONTROLLER_REVISIONS,
        snapshot.revisions.iter().copied(),
    );
    let member = |pod: &Pod| {
        let parent = split_name(name(pod)).map(|(parent, _)| parent);
        parent == Some(&owner.name) && selects(&spec.selector, pod.metadata.labels())
    };
    let pods = claim(&owner, deleted, member, PODS, snapshot.pods.iter().copied());
    let claiming: Vec<Step> = revisions.steps.into_iter().chain(pods.steps).collect();
    if !claiming.is_empty() {
        plan.stage(claiming);
        return plan;
    }
    let mut known = revisions.owned;
    known.retain(|revision| selected(revision));
    history::sort(&mut known);
    let Some(revisions) = Revisions::of(snapshot, spec, &owner, known) else {
        return plan;
    };
    let numbered = pods.owned.into_iter().filter_map(|pod| {
        let (_, ordinal) = split_name(name(pod))?;
        Some((ordinal, pod))
    });
    let range = range(spec);
    let (replicas, condemned) = numbered.partition(|(ordinal, _)| range.contains(ordinal));
    let templates = spec.volume_claim_templates.iter().flatten();
    let view = View {
        snapshot,
        spec,
        owner,
        revisions,
        templates: templates.map(|template| (name(template), template)).collect(),
        replicas,
        condemned,
        now,
    };
    view.perform(deleted, backoff, &mut plan);
    plan
}

/// The StatefulSet's name and the ordinal in a pod's name.
fn split_name(name: &str) -> Option<(&str, i32)> {
    let (parent, digits) = name.rsplit_once('-')?;
    let ordinal = digits.parse().ok()?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some((parent, ordinal))
}

/// The StatefulSet of a pod by its name, if the name has that form.
pub fn parent(name: &str) -> Option<&str> {
    split_name(name).map(|(parent, _)| parent)
}

/// Ordinals of a StatefulSet's pods.
fn range(spec: &StatefulSetSpec) -> Range<i32> {
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    start..start.saturating_add(spec.replicas.unwrap_or(1))
}

impl View<'_> {
    fn perform(&self, deleted: bool, backoff: &mut Backoff, plan: &mut Plan) {
        let (mut first, mut work) = (Work::default(), Work::default());
        if !deleted {
            // Steps found before a stop are performed.
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) = self.work(backoff, &mut first, &mut work);
        }
        if !deleted {
            plan.stage(self.revisions.steps.clone());
        }
        let tolerant = plan.stages.len();
        plan.stage(first.claims);
        plan.stage(first.pods);
        plan.stage(work.claims);
        plan.stage(work.pods);
        // The status is also updated if a pod cannot be created or deleted (`performUpdate`).
        let mut last: Vec<Step> = self.status(work.outdated).into_iter().collect();
        last.extend(work.corrections);
        last.extend(self.superfluous_revisions());
        plan.close(tolerant, last);
        let pods = self.replicas.values().chain(self.condemned.values());
        let delays = pods.filter_map(|pod| self.available_in(pod)).chain(work.again);
        if let Some(next) = delays.filter(|delay| !delay.is_zero()).min() {
            plan.again(next);
        }
    }

    /// Finds the steps; those of `first` come before those of `work`.
    fn work(&self, backoff: &mut Backoff, first: &mut Work, work: &mut Work) -> ControlFlow<()> {
        // Pods beyond the range may have the quota that missing ones within it need.
        if !self.ordered() {
            self.remove_condemned(first)?;
        }
        // While creation fails, one attempt is enough.
        let limit = if self.snapshot.failure.is_some() { 1 } else { BURST };
        for ordinal in range(self.spec) {
            let stop = self.replica(ordinal, backoff, work);
            if work.made >= limit || (stop.is_break() && self.ordered()) {
                return ControlFlow::Break(());
            }
        }
        if self.ordered() {
            self.remove_condemned(work)?;
        }
        self.update(work);
        ControlFlow::Continue(())
    }

    /// Processes one replica (`processReplica`); breaks if later ones must wait.
    fn replica(&self, ordinal: i32, backoff: &mut Backoff, work: &mut Work) -> ControlFlow<()> {
        let Some(pod) = self.replicas.get(&ordinal) else {
            self.make(ordinal, work);
            return ControlFlow::Break(());
        };
        if is_finished(pod) {
            if !pod.metadata.is_deleting() {
                let status = self.snapshot.set.status.as_ref();
                let observed = status.and_then(|status| status.observed_generation).unwrap_or(0);
                match backoff.next(&self.owner.uid, observed, &ordinal.to_string(), self.now) {
                    Some(delay) => work.again.push(delay),
                    None => work.pods.push(self.delete(pod)),
                }
            }
            return ControlFlow::Break(());
        }
        if phase(pod) == "Pending" && self.make_claims(ordinal, &target(PODS, *pod), work).is_err() {
            return ControlFlow::Break(());
        }
        if self.ordered() && (phase(pod) != "Running" || self.is_unavailable(pod)) {
            return ControlFlow::Break(());
        }
        self.correct(ordinal, pod, work);
        ControlFlow::Continue(())
    }

    /// Deletes pods beyond the range; if ordered, one after the other, and only unhealthy ones
    /// while there are any (`processCondemned`).
    fn remove_condemned(&self, work: &mut Work) -> ControlFlow<()> {
        for (ordinal, pod) in self.condemned.iter().rev() {
            work.claims.extend(self.owners_of_claims(*ordinal, &target(PODS, *pod)));
        }
        let broken = |pod: &Pod| phase(pod) != "Running" || self.is_unavailable(pod);
        let first_broken = self.condemned.iter().find(|(_, pod)| self.is_unavailable(pod));
        for (ordinal, pod) in self.condemned.iter().rev() {
            let is_first = first_broken.is_some_and(|(first, _)| first == ordinal);
            let going = pod.metadata.is_deleting();
            if self.ordered() && (going || (broken(pod) && !is_first)) {
                return ControlFlow::Break(());
            }
            if !going {
                work.pods.push(self.delete(pod));
                if self.ordered() {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Deletes pods of old revisions one after the other, from the highest ordinal down. A stored
    /// `maxUnavailable` is ignored: the feature gate `MaxUnavailableStatefulSet` is off.
    fn update(&self, work: &mut Work) {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete")) {
            return;
        }
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let Range { start, end } = range(self.spec);
        let first = start.saturating_add(partition(rolling));
        let is_old = |pod: &Pod| revision(pod) != Some(&self.revisions.update.name);
        let lasting = |pod: &Pod| !pod.metadata.is_deleting() && !is_finished(pod);
        for ordinal in (first..end).rev() {
            match self.replicas.get(&ordinal) {
                Some(pod) if is_old(pod) && lasting(pod) => return self.replace(pod, work),
                Some(pod) if !self.is_unavailable(pod) => {}
                Some(_) | None => return,
            }
        }
    }

    fn replace(&self, pod: &Pod, work: &mut Work) {
        work.pods.push(self.delete(pod));
        work.outdated = work.outdated.saturating_add(1);
    }

    /// The revision that a pod is created from (`newVersionedStatefulSetPod`).
    fn version(&self, ordinal: i32) -> &Version<'_> {
        let strategy = self.spec.update_strategy.as_ref();
        let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
        let kept = match strategy.and_then(|strategy| strategy.rolling_update.as_ref()) {
            Some(rolling) => partition(Some(rolling)),
            None if kind == Some("RollingUpdate") => {
                let status = self.snapshot.set.status.as_ref();
                status.and_then(|status| status.current_replicas).unwrap_or(0)
            }
            None => 0,
        };
        if ordinal < range(self.spec).start.saturating_add(kept) {
            &self.revisions.current
        } else {
            &self.revisions.update
        }
    }

    fn ordered(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    fn available_in(&self, pod: &Pod) -> Option<Duration> {
        available_in(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    fn is_unavailable(&self, pod: &Pod) -> bool {
        pod.metadata.is_deleting() || self.available_in(pod) != Some(Duration::ZERO)
    }
}

fn partition(rolling: Option<&RollingUpdateStatefulSetStrategy>) -> i32 {
    rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
}

/// Name of the revision that a pod was created from.
fn revision(pod: &Pod) -> Option<&String> {
    pod.metadata.labels()?.get(history::REVISION)
}
