//! The Deployment's status.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentStatus};
use serde_json::{Value, json};

use super::condition::{self, AVAILABLE, PROGRESSING, REPLICA_FAILURE};
use super::{Sized, View, create, patch_deployment, status_replicas};
use crate::objects::{name, seconds};
use crate::step::{Plan, Step};

const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const CREATE_FAILED: &str = "ReplicaSetCreateError";

/// The status' counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    observed: i64,
    replicas: i32,
    updated: i32,
    ready: i32,
    available: i32,
    unavailable: i32,
    terminating: i32,
    collisions: i32,
}

impl Counts {
    fn of_status(status: &DeploymentStatus) -> Self {
        Self {
            observed: status.observed_generation.unwrap_or(0),
            replicas: status.replicas.unwrap_or(0),
            updated: status.updated_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            unavailable: status.unavailable_replicas.unwrap_or(0),
            terminating: status.terminating_replicas.unwrap_or(0),
            collisions: status.collision_count.unwrap_or(0),
        }
    }

    /// `created` is the size of a ReplicaSet that is about to be created: its pods count as
    /// unavailable from then on.
    fn of_view(view: &View<'_>, created: i32) -> Self {
        let field = |read: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> Option<i32>| -> i32 {
            view.all()
                .filter_map(|sized| sized.set.status.as_ref().and_then(read))
                .sum()
        };
        let wanted: i32 = created + view.all().map(|sized| sized.replicas).sum::<i32>();
        let available = field(|status| status.available_replicas);
        let before = view.deployment.status.as_ref();
        Self {
            observed: view.deployment.metadata.generation.unwrap_or(0),
            replicas: view.all().map(|sized| status_replicas(sized.set)).sum(),
            updated: view.new.as_ref().map_or(0, |new| status_replicas(new.set)),
            ready: field(|status| status.ready_replicas),
            available,
            unavailable: wanted.saturating_sub(available).max(0),
            terminating: field(|status| status.terminating_replicas),
            collisions: before.and_then(|status| status.collision_count).unwrap_or(0),
        }
    }

    fn complete(&self, view: &View<'_>) -> bool {
        let desired = view.settings.replicas;
        self.updated == desired
            && self.replicas == desired
            && self.available == desired
            && self.observed >= view.deployment.metadata.generation.unwrap_or(0)
    }

    fn progressed(&self, before: &Self) -> bool {
        self.updated > before.updated
            || self.replicas.saturating_sub(self.updated) < before.replicas.saturating_sub(before.updated)
            || self.ready > before.ready
            || self.available > before.available
    }

    /// The status as a merge patch: a zero removes the field, as upstream omits it.
    fn patch(&self) -> Value {
        let number = |count: i32| if count == 0 { Value::Null } else { count.into() };
        json!({
            "observedGeneration": self.observed,
            "replicas": number(self.replicas),
            "updatedReplicas": number(self.updated),
            "readyReplicas": number(self.ready),
            "availableReplicas": number(self.available),
            "unavailableReplicas": number(self.unavailable),
            "terminatingReplicas": self.terminating,
            "collisionCount": number(self.collisions),
        })
    }
}

/// True if every pod is of the new template and available.
pub(super) fn is_complete(view: &View<'_>) -> bool {
    Counts::of_view(view, 0).complete(view)
}

/// Adds the status patch if the status has changed.
pub(super) fn report(view: &View<'_>, plan: &mut Plan) {
    let before = view.deployment.status.clone().unwrap_or_default();
    let was = Counts::of_status(&before);
    let (creating, created) = view.new.is_none().then(|| created(plan)).flatten().unzip();
    let now = Counts::of_view(view, created.unwrap_or(0));
    let old = before.conditions.unwrap_or_default();
    let mut conditions = old.clone();
    availability(view, now, &mut conditions);
    match (view.settings.deadline, view.settings.paused) {
        (None, _) => condition::remove(&mut conditions, PROGRESSING),
        (Some(_), true) => {
            if condition::find(&conditions, PROGRESSING).is_none_or(|old| old.reason.as_deref() != Some(TIMED_OUT)) {
                let paused = condition::unknown(PROGRESSING, "DeploymentPaused", "Deployment is paused", view.now);
                condition::set(&mut conditions, paused);
            }
        }
        (Some(deadline), false) => {
            progress(view, (was, now), creating.as_deref(), deadline, &mut conditions);
            if let Some(delay) = recheck(view, &conditions, deadline, now) {
                plan.again(delay);
            }
        }
    }
    replica_failure(view, &mut conditions);
    if was == now && old == conditions {
        return;
    }
    let mut body = now.patch();
    super::merge(&mut body, &json!({ "conditions": conditions }));
    let step = patch_deployment(view, Some("status"), json!({ "status": body }));
    if view.failure.is_some() {
        plan.stages.insert(0, vec![step]);
    } else {
        plan.stage(vec![step]);
    }
}

/// The name of the ReplicaSet that the plan creates, and its size.
fn created(plan: &Plan) -> Option<(String, i32)> {
    plan.stages.iter().flatten().find_map(|step| match step {
        Step::Create { body, .. } => {
            let name = body.pointer("/metadata/name").and_then(Value::as_str)?;
            let size = body.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
            Some((name.to_owned(), i32::try_from(size).unwrap_or(i32::MAX)))
        }
        Step::Patch { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_) | Step::Event(_) => None,
    })
}

fn availability(view: &View<'_>, counts: Counts, conditions: &mut Vec<DeploymentCondition>) {
    let minimum = view.settings.replicas.saturating_sub(view.settings.unavailable());
    let (status, reason, message) = if counts.available >= minimum {
        (true, "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        (
            false,
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    condition::set(
        conditions,
        condition::new(AVAILABLE, status, reason, message.to_owned(), view.now),
    );
}

fn progress(
    view: &View<'_>,
    (was, now): (Counts, Counts),
    creating: Option<&str>,
    deadline: Duration,
    conditions: &mut Vec<DeploymentCondition>,
) {
    let set = |conditions: &mut _, status, reason, message| {
        condition::set(
            conditions,
            condition::new(PROGRESSING, status, reason, message, view.now),
        );
    };
    if let Some(failure) = view.failure.filter(|_| view.new.is_none()) {
        let name = create::name(view).map(|(name, _)| name).unwrap_or_default();
        return set(
            conditions,
            false,
            CREATE_FAILED,
            create::refused(&name, &failure.message),
        );
    }
    if let Some(name) = creating {
        return set(
            conditions,
            true,
            "NewReplicaSetCreated",
            format!("Created new replica set \"{name}\""),
        );
    }
    let current = condition::find(conditions, PROGRESSING).cloned();
    let reason = current
        .as_ref()
        .and_then(|current| current.reason.as_deref())
        .unwrap_or_default();
    if reason == "DeploymentPaused" {
        let resumed = condition::unknown(PROGRESSING, "DeploymentResumed", "Deployment is resumed", view.now);
        return condition::set(conditions, resumed);
    }
    if now.replicas == now.updated && reason == COMPLETE {
        return;
    }
    let subject = view.new.as_ref().map_or_else(
        || format!("Deployment \"{}\"", view.name()),
        |new| format!("ReplicaSet \"{}\"", name(new.set)),
    );
    if now.complete(view) {
        set(
            conditions,
            true,
            COMPLETE,
            format!("{subject} has successfully progressed."),
        );
    } else if now.progressed(&was) {
        let message = format!("{subject} is progressing.");
        let updated = condition::new(PROGRESSING, true, "ReplicaSetUpdated", message, view.now);
        condition::renew(conditions, updated);
    } else if current
        .as_ref()
        .is_some_and(|current| has_timed_out(view, current, deadline))
    {
        set(
            conditions,
            false,
            TIMED_OUT,
            format!("{subject} has timed out progressing."),
        );
    } else if let (None, Some(new)) = (&current, &view.new) {
        set(
            conditions,
            true,
            "FoundNewReplicaSet",
            format!("Found new replica set \"{}\"", name(new.set)),
        );
    }
}

fn has_timed_out(view: &View<'_>, current: &DeploymentCondition, deadline: Duration) -> bool {
    match current.reason.as_deref() {
        Some(COMPLETE) => false,
        Some(TIMED_OUT) => true,
        _ => current.last_update_time.as_ref().is_some_and(|since| {
            let deadline = i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX);
            seconds(view.now).0.as_second() > since.0.as_second().saturating_add(deadline)
        }),
    }
}

/// Time until the progress deadline has to be checked again.
fn recheck(view: &View<'_>, conditions: &[DeploymentCondition], deadline: Duration, now: Counts) -> Option<Duration> {
    let current = condition::find(conditions, PROGRESSING)?;
    let settled = matches!(current.reason.as_deref(), Some(COMPLETE | TIMED_OUT));
    if settled || now.complete(view) {
        return None;
    }
    let since = current.last_update_time.as_ref()?.0.as_second();
    let passed = u64::try_from(view.now.as_second().saturating_sub(since)).unwrap_or(0);
    Some(Duration::from_secs(
        deadline.as_secs().saturating_sub(passed).saturating_add(1),
    ))
}

/// Copies a ReplicaSet's `ReplicaFailure` condition, preferably that of the new one.
fn replica_failure(view: &View<'_>, conditions: &mut Vec<DeploymentCondition>) {
    let failing = |sized: &Sized<'_>| {
        let own = sized.set.status.as_ref()?.conditions.as_deref()?;
        own.iter()
            .find(|condition| condition.type_ == REPLICA_FAILURE && condition.status == "True")
            .cloned()
    };
    let found = view
        .new
        .as_ref()
        .and_then(failing)
        .or_else(|| view.old.iter().find_map(failing));
    match found {
        None => condition::remove(conditions, REPLICA_FAILURE),
        Some(failure) => {
            let passed_on = DeploymentCondition {
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time,
                type_: failure.type_,
                status: failure.status,
                reason: failure.reason,
                message: failure.message,
            };
            condition::set(conditions, passed_on);
        }
    }
}
