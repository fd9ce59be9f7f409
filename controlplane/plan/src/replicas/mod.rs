//! The plan of ReplicaSets, and of replication controllers: as many pods as asked for, and a status that counts them.

mod elder;
mod order;
mod status;
#[cfg(test)]
mod tests;

use k8s_openapi::{api::apps::v1::ReplicaSet, jiff::Timestamp};

pub use self::elder::Elder;
pub use crate::rollout::Failure;
use crate::{
    claim::claim,
    objects::{Meta as _, is_active, is_finished, selects, target},
    pod::Pod,
    pod_template,
    step::{PODS, Plan, Resource},
};

/// Most pods that one plan makes or deletes.
pub const BURST: usize = 500;

/// What the ReplicaSet controller sees.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// What it is by its kind.
    pub resource: Resource,
    /// The ReplicaSet, or what is read as one.
    pub set: &'a ReplicaSet,
    /// Its pods and the namespace's pods without a manager.
    pub pods: &'a [&'a Pod],
    /// The pods of all ReplicaSets of the same owner: a node that has many of them gives one up first.
    pub related: &'a [&'a Pod],
    /// What the server said when a pod could not be created the last time.
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
    let mut short = false;
    if !deleted {
        let missing = wanted.saturating_sub(active.len());
        short = missing > 0;
        // While creation fails, one attempt tells as much as many.
        let limit = if snapshot.failure.is_some() { 1 } else { BURST };
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
    let failure = snapshot.failure.filter(|_| short);
    status::report(snapshot.set, &owner, (&active, terminating), failure, now, &mut plan);
    plan
}
