//! Validation of a Job's status.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::has_condition;
use crate::value::invalid::{Invalid, InvalidKind};
use crate::workload::validation::{IMMUTABLE, non_negative};

/// Validates an update of the status. An update without changes is not validated.
pub(super) fn validate(new: &Job, old: &Job) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if new.status == old.status {
        return errors;
    }
    let status = new.status.clone().unwrap_or_default();
    let before = old.status.clone().unwrap_or_default();
    counts(&mut errors, &status);
    uncounted(&mut errors, &status);
    conditions(&mut errors, new);
    times(&mut errors, new, &status);
    indexes(&mut errors, new, &status);
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if has_condition(old, kind) && !has_condition(new, kind) {
            errors.push(in_conditions(format!(
                "cannot disable the terminal {kind}=True condition"
            )));
        }
    }
    let count = |count: Option<i32>| count.unwrap_or(0);
    let is_indexed = is_indexed(new);
    for (name, now, was) in [
        ("failed", status.failed, before.failed),
        ("succeeded", status.succeeded, before.succeeded),
    ] {
        // An indexed Job may be scaled down.
        if count(now) < count(was) && (name == "failed" || !is_indexed) {
            let detail = format!("cannot decrease the {name} counter");
            errors.push(Invalid::value(format!("status.{name}"), count(now), detail));
        }
    }
    if let (Some(time), Some(was)) = (&status.completion_time, &before.completion_time)
        && time != was
    {
        errors.push(at(time, IMMUTABLE));
    }
    // The controller learns of the end of a suspension later than the spec changes.
    let resumes = has_condition(old, "Suspended") && !has_condition(new, "Suspended");
    if before.start_time.is_some() && status.start_time != before.start_time && !is_suspended(new) && !resumes {
        let shown = serde_json::to_string(&status.start_time).unwrap_or_default();
        let detail = "field is immutable for unsuspended job once set";
        errors.push(Invalid::rendered("status.startTime", shown, detail));
    }
    if has_condition(old, MET) && !has_condition(new, MET) {
        errors.push(in_conditions("cannot disable the SuccessCriteriaMet=True condition"));
    }
    if has_condition(old, "Complete") && !has_condition(old, MET) && has_condition(new, MET) {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(in_conditions(detail));
    }
    errors
}

const MET: &str = "SuccessCriteriaMet";

/// Error for the conditions, which are not shown.
fn in_conditions(detail: impl Into<String>) -> Invalid {
    Invalid {
        field: "status.conditions".to_owned(),
        kind: InvalidKind::Invalid,
        value: None,
        detail: detail.into(),
    }
}

/// Error for the completion time.
fn at(time: &Time, detail: &str) -> Invalid {
    let shown = serde_json::to_string(time).unwrap_or_default();
    Invalid::rendered("status.completionTime", shown, detail)
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

fn is_indexed(job: &Job) -> bool {
    let mode = job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref());
    mode == Some("Indexed")
}

fn counts(errors: &mut Vec<Invalid>, status: &JobStatus) {
    for (name, count) in [
        ("active", status.active),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
        ("ready", status.ready),
        ("terminating", status.terminating),
    ] {
        non_negative(errors, &format!("status.{name}"), i64::from(count.unwrap_or(0)));
    }
}

fn uncounted(errors: &mut Vec<Invalid>, status: &JobStatus) {
    let Some(pods) = &status.uncounted_terminated_pods else {
        return;
    };
    let mut seen = BTreeSet::new();
    for (name, uids) in [("succeeded", &pods.succeeded), ("failed", &pods.failed)] {
        for (index, uid) in uids.iter().flatten().enumerate() {
            let field = format!("status.uncountedTerminatedPods.{name}[{index}]");
            if uid.is_empty() {
                errors.push(Invalid::value(field, uid, "must not be empty"));
            } else if !seen.insert(uid) {
                errors.push(Invalid::duplicate(field, uid));
            }
        }
    }
}

fn conditions(errors: &mut Vec<Invalid>, job: &Job) {
    let is = |kind: &str| has_condition(job, kind);
    let (complete, failed, target) = (is("Complete"), is("Failed"), is("FailureTarget"));
    let has_policy = job.spec.as_ref().is_some_and(|spec| spec.success_policy.is_some());
    for (wrong, detail) in [
        (
            complete && failed,
            "cannot set Complete=True and Failed=true conditions",
        ),
        (
            complete && target,
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            failed && !target,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            complete && !is(MET),
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (
            is(MET) && failed,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        ),
        (
            is(MET) && target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            has_policy && !is(MET) && complete,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
    ] {
        if wrong {
            errors.push(in_conditions(detail));
        }
    }
}

/// Validates start and completion times, and the fields that a finished Job must not have.
fn times(errors: &mut Vec<Invalid>, job: &Job, status: &JobStatus) {
    let complete = has_condition(job, "Complete");
    match &status.completion_time {
        Some(time) if !complete => {
            let detail = "cannot set completionTime when there is no Complete=True condition";
            errors.push(at(time, detail));
        }
        None if complete => {
            let detail = "completionTime is required for Complete jobs";
            errors.push(Invalid::required("status.completionTime", detail));
        }
        Some(_) | None => {}
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time)
        && end.0 < start.0
    {
        errors.push(at(end, "must be equal to or after `startTime`"));
    }
    let is_over = complete || has_condition(job, "Failed");
    let count = |count: Option<i32>| count.unwrap_or(0);
    let active = count(status.active);
    if is_over && active > 0 {
        let detail = "active>0 is invalid for finished job";
        errors.push(Invalid::value("status.active", active, detail));
    }
    let wants_nothing = job.spec.as_ref().is_some_and(|spec| spec.completions == Some(0));
    if is_over && status.start_time.is_none() && !(is_suspended(job) && wants_nothing) {
        let detail = "startTime is required for finished job";
        errors.push(Invalid::required("status.startTime", detail));
    }
    if let Some(pods) = status.uncounted_terminated_pods.as_ref().filter(|_| is_over) {
        let left = pods.succeeded.iter().chain(&pods.failed).flatten().count();
        if left > 0 {
            let shown = json!({ "Succeeded": pods.succeeded, "Failed": pods.failed }).to_string();
            let detail = "must be empty for finished job";
            errors.push(Invalid::rendered("status.uncountedTerminatedPods", shown, detail));
        }
    }
    if is_over && count(status.terminating) > 0 {
        let detail = "terminating>0 is invalid for finished job";
        errors.push(Invalid::value("status.terminating", count(status.terminating), detail));
    }
    if let Some(ready) = status.ready.filter(|ready| *ready > active) {
        let detail = "cannot set more ready pods than active";
        errors.push(Invalid::value("status.ready", ready, detail));
    }
}

fn indexes(errors: &mut Vec<Invalid>, job: &Job, status: &JobStatus) {
    let completed = status.completed_indexes.as_deref().unwrap_or_default();
    if !completed.is_empty() && !is_indexed(job) {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(Invalid::value("status.completedIndexes", completed, detail));
    }
    let limit = job.spec.as_ref().and_then(|spec| spec.backoff_limit_per_index);
    if let Some(failed) = status.failed_indexes.as_ref().filter(|_| limit.is_none()) {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.push(Invalid::value("status.failedIndexes", failed, detail));
    }
}
