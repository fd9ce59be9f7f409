//! Conditions of a Deployment; unchanged ones keep their times.

use k8s_openapi::api::apps::v1::DeploymentCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::objects::seconds;

/// The condition types.
pub(super) const AVAILABLE: &str = "Available";
pub(super) const PROGRESSING: &str = "Progressing";
pub(super) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// A new condition.
pub(super) fn new(kind: &str, status: bool, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    let time: Time = seconds(now);
    DeploymentCondition {
        type_: kind.to_owned(),
        status: text(status).to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(time.clone()),
        last_transition_time: Some(time),
    }
}

/// The same with status Unknown.
pub(super) fn unknown(kind: &str, reason: &str, message: &str, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        status: "Unknown".to_owned(),
        ..new(kind, true, reason, message.to_owned(), now)
    }
}

fn text(status: bool) -> &'static str {
    if status { "True" } else { "False" }
}

/// The condition of a type.
pub(super) fn find<'a>(conditions: &'a [DeploymentCondition], kind: &str) -> Option<&'a DeploymentCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Removes the condition of a type.
pub(super) fn remove(conditions: &mut Vec<DeploymentCondition>, kind: &str) {
    conditions.retain(|condition| condition.type_ != kind);
}

/// Sets a condition if its status or reason has changed; the transition time changes only with the
/// status.
pub(super) fn set(conditions: &mut Vec<DeploymentCondition>, condition: DeploymentCondition) {
    if find(conditions, &condition.type_)
        .is_some_and(|old| old.status == condition.status && old.reason == condition.reason)
    {
        return;
    }
    renew(conditions, condition);
}

/// Sets a condition even if only its times have changed.
pub(super) fn renew(conditions: &mut Vec<DeploymentCondition>, mut condition: DeploymentCondition) {
    if let Some(old) = find(conditions, &condition.type_).filter(|old| old.status == condition.status) {
        condition.last_transition_time.clone_from(&old.last_transition_time);
    }
    remove(conditions, &condition.type_);
    conditions.push(condition);
}
