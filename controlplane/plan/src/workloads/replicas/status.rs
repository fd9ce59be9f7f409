//! The ReplicaSet's status.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Failure;
use crate::objects::{Meta as _, seconds};
use crate::pod::{Pod, available_in, is_ready};
use crate::step::{Plan, REPLICATION_CONTROLLERS, Step, Target};

const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Number of unready pods above which the ready count is updated only from time to time.
const CROWD: usize = 8;
const NOW_AND_THEN: Duration = Duration::from_millis(50);

/// Adds the status patch if the status has changed, and the time when a pod becomes available.
pub(super) fn report(
    set: &ReplicaSet,
    owner: &Target,
    (active, terminating): (&[&Pod], usize),
    failure: Option<(&str, &Failure)>,
    now: Timestamp,
    plan: &mut Plan,
) {
    let spec = set.spec.as_ref();
    let min_ready = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let template = spec.and_then(|spec| spec.template.as_ref());
    let labels = template
        .and_then(|template| template.metadata.as_ref())
        .and_then(|metadata| metadata.labels.as_ref());
    let fully = |pod: &Pod| {
        let own = pod.metadata.labels();
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
    };
    let delays: Vec<Duration> = active
        .iter()
        .filter_map(|pod| available_in(pod, min_ready, now))
        .collect();
    // Replication controllers do not report terminating pods.
    let terminating = if owner.resource == REPLICATION_CONTROLLERS {
        0
    } else {
        terminating
    };
    let counts = [
        active.len(),
        active.iter().filter(|pod| fully(pod)).count(),
        active.iter().filter(|pod| is_ready(pod)).count(),
        delays.iter().filter(|delay| delay.is_zero()).count(),
        terminating,
    ]
    .map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    if let Some(next) = delays.into_iter().filter(|delay| !delay.is_zero()).min() {
        plan.again(next);
    }
    let before = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation.unwrap_or(0);
    let was = [
        before.replicas,
        before.fully_labeled_replicas.unwrap_or(0),
        before.ready_replicas.unwrap_or(0),
        before.available_replicas.unwrap_or(0),
        before.terminating_replicas.unwrap_or(0),
    ];
    let old = before.conditions.unwrap_or_default();
    let conditions = conditions(&old, failure, now);
    if was == counts && old == conditions && before.observed_generation.unwrap_or(0) == generation {
        return;
    }
    let step = patch(set, owner, counts, generation, &conditions);
    let [replicas, _, ready, ..] = counts;
    let only_readiness = plan.is_empty() && was.first() == Some(&replicas) && old == conditions;
    let starting = active.len().saturating_sub(usize::try_from(ready).unwrap_or(0));
    if only_readiness && starting > CROWD {
        plan.patience = Some(NOW_AND_THEN);
    }
    if failure.is_some() {
        plan.stages.insert(0, vec![step]);
    } else {
        plan.stage(vec![step]);
    }
}

fn patch(
    set: &ReplicaSet,
    owner: &Target,
    [replicas, labeled, ready, available, terminating]: [i32; 5],
    generation: i64,
    conditions: &[ReplicaSetCondition],
) -> Step {
    let number = |count: i32| if count == 0 { Value::Null } else { count.into() };
    let terminating = (owner.resource != REPLICATION_CONTROLLERS).then_some(terminating);
    let conditions = if conditions.is_empty() {
        Value::Null
    } else {
        json!(conditions)
    };
    owner.clone().merge_status(json!({
        "metadata": { "uid": owner.uid, "resourceVersion": set.metadata.resource_version },
        "status": {
            "replicas": replicas,
            "fullyLabeledReplicas": number(labeled),
            "readyReplicas": number(ready),
            "availableReplicas": number(available),
            "terminatingReplicas": terminating,
            "observedGeneration": generation,
            "conditions": conditions,
        },
    }))
}

/// The conditions with a failure, given with its reason (`calculateStatus` of
/// `pkg/controller/replicaset/replica_set_utils.go`).
fn conditions(
    old: &[ReplicaSetCondition],
    failure: Option<(&str, &Failure)>,
    now: Timestamp,
) -> Vec<ReplicaSetCondition> {
    let found = old.iter().find(|condition| condition.type_ == REPLICA_FAILURE);
    let mut conditions: Vec<_> = old.iter().filter(|old| old.type_ != REPLICA_FAILURE).cloned().collect();
    if let Some((reason, failure)) = failure {
        conditions.push(found.cloned().unwrap_or_else(|| ReplicaSetCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: Some(seconds(now)),
        }));
    }
    conditions
}
