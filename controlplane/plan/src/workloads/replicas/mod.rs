//! ReplicaSets and replication controllers: creates and deletes pods, and counts them in the
//! status.

mod order;
mod replication_controller;
mod status;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::jiff::Timestamp;

use crate::objects::{Meta as _, controller_of, selects, target};
use crate::pod::Pod;
use crate::pod::{is_active, is_finished, phase};
use crate::step::{PODS, Plan, Resource};
use crate::workloads::claim::claim;
use crate::workloads::pod_template;
pub use crate::workloads::rollout::Failure;
pub use replication_controller::ReplicationController;

/// Most pods that one plan creates or deletes.
pub const BURST: usize = 500;
/// Shortest and longest backoff before failed pods are replaced. Upstream's `ReplicaSet`s have none
/// and create pods as fast as a kubelet rejects them; its `DaemonSet`s, which met that problem
/// first, wait up to 15 minutes (`cmd/kube-controller-manager/app/apps.go`). Here it is one minute,
/// since replicas added by scaling wait, too.
const BACKOFF: (i64, i64) = (1, 60);
/// Longest time between two consecutive failures, in seconds.
const ROW: i64 = 30 * 60;

/// Input of the ReplicaSet controller.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// ReplicaSets or `ReplicationController`s.
    pub resource: Resource,
    /// The ReplicaSet, or a `ReplicationController` converted to one.
    pub set: &'a ReplicaSet,
    /// Its pods and the namespace's pods without a manager.
    pub pods: &'a [&'a Pod],
    /// Pods of all ReplicaSets of the same owner: pods on nodes with many of them are deleted
    /// first.
    pub related: &'a [&'a Pod],
    /// The server's last refusal to create or delete a pod.
    pub failure: Option<&'a Failure>,
}

/// Makes the plan.
pub fn plan(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = snapshot.set.spec.as_ref() else {
        return plan;
    };
    let owner = target(snapshot.resource, snapshot.set);
    let deleted = snapshot.set.metadata.deletion_timestamp.is_some();
    let candidates = snapshot.pods.iter().copied().filter(|pod| !is_finished(pod));
    let claimed = claim(
        &owner,
        deleted,
        |pod| selects(&spec.selector, pod.metadata.labels()),
        PODS,
        candidates,
    );
    if !claimed.steps.is_empty() {
        plan.stage(claimed.steps);
        return plan;
    }
    let active: Vec<&Pod> = claimed.owned.iter().copied().filter(|pod| is_active(pod)).collect();
    let terminating = claimed.owned.len().saturating_sub(active.len());
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    // What was refused before the set was scaled the other way is not tried again.
    let failure = snapshot
        .failure
        .filter(|failure| failure.deletion == (active.len() > wanted));
    if !deleted {
        let missing = wanted.saturating_sub(active.len());
        let backoff = Backoff::of(&owner.uid, snapshot.pods, now);
        let wait = backoff.wait(now).filter(|_| missing > 0);
        if let Some(wait) = wait {
            plan.again(wait);
        }
        // While creation fails, or created pods fail, one attempt is enough.
        let limit = match wait {
            Some(_) => 0,
            None if failure.is_some() || backoff.rounds > 1 => 1,
            None => BURST,
        };
        plan.stage(
            (0..missing.min(limit))
                .filter_map(|_| spec.template.as_ref())
                .map(|template| pod_template::create(&owner, &pod_template::pod(&owner, template)))
                .collect(),
        );
        let surplus = active.len().saturating_sub(wanted).min(BURST);
        plan.stage(
            order::victims(&active, snapshot.related, surplus, now)
                .map(|pod| pod_template::delete(&owner, pod))
                .collect(),
        );
    }
    let reason = match active.len().cmp(&wanted) {
        Ordering::Less => Some("FailedCreate"),
        Ordering::Greater => Some("FailedDelete"),
        Ordering::Equal => None,
    };
    let failure = reason.filter(|_| !deleted).zip(failure);
    status::report(snapshot.set, &owner, (&active, terminating), failure, now, &mut plan);
    plan
}

/// Pods that failed one after the other without a running one in between: a node rejects them, or
/// evicts them at once.
struct Backoff {
    /// Number of different seconds in which they were created.
    rounds: u32,
    newest: i64,
}

impl Backoff {
    fn of(owner: &str, pods: &[&Pod], now: Timestamp) -> Self {
        let made = |pod: &&Pod| pod.metadata.created.map(Timestamp::as_second);
        let own = |pod: &&&Pod| {
            let controller = controller_of(&pod.metadata).is_some_and(|controller| *controller.uid == *owner);
            controller && !pod.metadata.is_deleting()
        };
        let in_phase = |wanted: &'static str| {
            let found = pods.iter().filter(own).filter(move |pod| phase(pod) == wanted);
            found.filter_map(made)
        };
        let runs = in_phase("Running").max().unwrap_or(i64::MIN);
        let failed: BTreeSet<i64> = in_phase("Failed").filter(|made| *made >= runs).collect();
        let mut rounds = 0;
        let mut later = now.as_second();
        for made in failed.iter().rev() {
            if later.saturating_sub(*made) > ROW {
                break;
            }
            (rounds, later) = (rounds + 1, *made);
        }
        let newest = failed.last().copied().unwrap_or(i64::MIN);
        Self { rounds, newest }
    }

    fn wait(&self, now: Timestamp) -> Option<Duration> {
        let doublings = self.rounds.checked_sub(1)?.min(16);
        let pause = (BACKOFF.0 << doublings).min(BACKOFF.1);
        let until = Timestamp::from_second(self.newest.saturating_add(pause)).ok()?;
        let wait = Duration::try_from(until.duration_since(now)).ok()?;
        (!wait.is_zero()).then_some(wait)
    }
}
