//! Findings for a workload itself: why it has no pods, or creates no more.

use serde_json::Value;

use super::finding::Finding;
use crate::client::api::text_at;
use crate::objects::describe::time_of;

/// True for objects with pod templates, or Job templates.
pub(super) fn makes_pods(target: &Value) -> bool {
    ["/spec/template", "/spec/jobTemplate"]
        .iter()
        .any(|pointer| target.pointer(pointer).is_some())
}

/// Returns findings besides those of the conditions, of which there are some if `troubled`.
pub(super) fn explain(kind: &str, target: &Value, pods: usize, events: &[Value], troubled: bool) -> Option<Finding> {
    let deleted = text_at(target, "/metadata/deletionTimestamp");
    if !deleted.is_empty() {
        let held = target.pointer("/metadata/finalizers").and_then(Value::as_array);
        let held: Vec<&str> = held.into_iter().flatten().filter_map(Value::as_str).collect();
        let finding = Finding::note(format!("It is being deleted, since {deleted}."));
        return Some(if held.is_empty() {
            finding
        } else {
            finding.fact(format!("Its finalizers keep it: {}.", held.join(", ")))
        });
    }
    let state = match kind {
        "Job" => job(target),
        "CronJob" => Some(cron_job(target)),
        "DaemonSet" => daemon_set(target),
        _ if number(target, "/spec/replicas") == Some(0) => {
            Some(Finding::note("It asks for no pod: spec.replicas is 0."))
        }
        _ => None,
    };
    state.or_else(|| {
        let refusal = refusal(events);
        let lacks = pods == 0 || (is_short(target, pods) && refusal.is_some());
        (lacks && !troubled && makes_pods(target)).then(|| missing(target, refusal))
    })
}

/// True for a StatefulSet or DaemonSet that asks for more pods: no condition of theirs tells.
fn is_short(target: &Value, pods: usize) -> bool {
    let wanted = number(target, "/spec/replicas").or_else(|| number(target, "/status/desiredNumberScheduled"));
    let pods = i64::try_from(pods).unwrap_or(i64::MAX);
    wanted.is_some_and(|wanted| wanted > pods)
}

/// The last event about a pod that was refused, unless the same object has had one created since.
fn refusal(events: &[Value]) -> Option<&Value> {
    let all = |reason| events.iter().filter(move |event| text_at(event, "/reason") == reason);
    let about = |event| text_at(event, "/involvedObject/uid");
    let refused = all("FailedCreate").max_by_key(|event| time_of(event).to_owned())?;
    let mut created = all("SuccessfulCreate").filter(|event| about(event) == about(refused));
    (!created.any(|event| time_of(event) > time_of(refused))).then_some(refused)
}

fn number(target: &Value, pointer: &str) -> Option<i64> {
    target.pointer(pointer).and_then(Value::as_i64)
}

fn is_suspended(target: &Value) -> bool {
    target.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true)
}

fn job(target: &Value) -> Option<Finding> {
    let count = |pointer| number(target, pointer).unwrap_or(0);
    let (succeeded, failed) = (count("/status/succeeded"), count("/status/failed"));
    let has = |kind: &str| {
        let conditions = target.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| text_at(condition, "/type") == kind && text_at(condition, "/status") == "True")
    };
    if has("Complete") {
        let finished = text_at(target, "/status/completionTime");
        let finding = Finding::note(format!("It is complete, since {finished}: it makes no more pods."));
        return Some(finding.fact(format!("{succeeded} of its pods succeeded, {failed} failed.")));
    }
    // Its condition has the reason.
    if has("Failed") {
        return None;
    }
    let manager = text_at(target, "/spec/managedBy");
    if !matches!(manager, "" | "kubernetes.io/job-controller") {
        let finding = Finding::note(format!("Another controller manages it (spec.managedBy: {manager})."));
        return Some(finding.advise("see whether that controller runs"));
    }
    if is_suspended(target) {
        let finding = Finding::note("It is suspended (spec.suspend): it makes no pods.");
        return Some(finding.advise("resume it: kubectl patch job NAME -p '{\"spec\":{\"suspend\":false}}'"));
    }
    if number(target, "/spec/parallelism") == Some(0) {
        return Some(Finding::note("It asks for no pod at a time: spec.parallelism is 0."));
    }
    let waits = failed > 0 && count("/status/active") == 0;
    waits.then(|| {
        let finding = Finding::note(format!("{failed} of its pods have failed; it waits before it makes the next."));
        let limit = number(target, "/spec/backoffLimit").unwrap_or(6);
        finding.fact(format!(
            "The pause is 10 s, then twice the one before, up to 10 min; after more than {limit} failures (spec.backoffLimit) it fails."
        ))
    })
}

fn cron_job(target: &Value) -> Finding {
    if is_suspended(target) {
        let finding = Finding::note("It is suspended (spec.suspend): it starts no Jobs.");
        return finding.advise("resume it: kubectl patch cronjob NAME -p '{\"spec\":{\"suspend\":false}}'");
    }
    let (schedule, zone) = (text_at(target, "/spec/schedule"), text_at(target, "/spec/timeZone"));
    let zone = if zone.is_empty() { "UTC" } else { zone };
    let last = text_at(target, "/status/lastScheduleTime");
    let finding = Finding::note(if last.is_empty() {
        "It has not started a Job yet.".to_owned()
    } else {
        format!("It started its last Job for {last}.")
    });
    finding.fact(format!("Its schedule is {schedule:?} in {zone}."))
}

fn daemon_set(target: &Value) -> Option<Finding> {
    let wanted = number(target, "/status/desiredNumberScheduled")?;
    let none = wanted == 0 && number(target, "/status/observedGeneration") == number(target, "/metadata/generation");
    none.then(|| {
        Finding::note("No node is meant: it asks for no pod (status.desiredNumberScheduled is 0).")
            .advise("compare its nodeSelector, affinity and tolerations with the nodes' labels and taints")
    })
}

/// Explains missing pods.
fn missing(target: &Value, refusal: Option<&Value>) -> Finding {
    if let Some(event) = refusal {
        return Finding::trouble("Its pods cannot be made.")
            .fact(text_at(event, "/message"))
            .advise("mend what the message names; its controller tries again by itself");
    }
    let what = match number(target, "/spec/replicas") {
        Some(wanted) => format!("It asks for {wanted} pods, and there is none."),
        None => "It asks for pods, and there is none.".to_owned(),
    };
    Finding::trouble(what).advise("see whether its controller runs: the log of the control plane tells")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::explain;

    /// Returns whether there is a problem, and the text about a workload without pods.
    fn said(kind: &str, mut target: Value, events: &[Value]) -> (bool, String) {
        let template = if kind == "CronJob" { "jobTemplate" } else { "template" };
        target["spec"][template] = json!({});
        let found = explain(kind, &target, 0, events, false).unwrap_or_default();
        (found.trouble, found.text(&[]))
    }

    #[test]
    fn a_workload_without_pods_tells_why_there_are_none() {
        let complete = json!([{ "type": "Complete", "status": "True" }]);
        let complete = json!({ "succeeded": 3, "completionTime": "T", "conditions": complete });
        let going = json!({ "deletionTimestamp": "T", "finalizers": ["foregroundDeletion"] });
        for (kind, target, words) in [
            ("Job", json!({ "spec": { "suspend": true } }), "It is suspended"),
            (
                "Job",
                json!({ "status": complete }),
                "3 of its pods succeeded, 0 failed",
            ),
            ("Job", json!({ "spec": { "parallelism": 0 } }), "spec.parallelism is 0"),
            ("Job", json!({ "spec": { "managedBy": "kueue" } }), "kueue"),
            ("Job", json!({ "status": { "failed": 2 } }), "2 of its pods have failed"),
            ("CronJob", json!({ "spec": { "suspend": true } }), "starts no Jobs"),
            (
                "CronJob",
                json!({ "spec": { "schedule": "@daily" } }),
                "\"@daily\" in UTC",
            ),
            (
                "DaemonSet",
                json!({ "status": { "desiredNumberScheduled": 0 } }),
                "No node is meant",
            ),
            (
                "StatefulSet",
                json!({ "spec": { "replicas": 0 } }),
                "spec.replicas is 0",
            ),
            ("ReplicaSet", json!({ "metadata": going }), "foregroundDeletion"),
        ] {
            let (trouble, text) = said(kind, target, &[]);
            assert!(!trouble && text.contains(words), "{words:?} is not in: {text}");
        }
        let at =
            |time: &str, reason: &str| json!({ "reason": reason, "message": "exceeded quota", "lastTimestamp": time });
        let refused = at("2026-01-01T00:00:05Z", "FailedCreate");
        let three = json!({ "spec": { "replicas": 3, "template": {} } });
        let is_told = |pods, events: &[Value]| explain("StatefulSet", &three, pods, events, false).is_some();
        let one = std::slice::from_ref(&refused);
        assert!(is_told(2, one) && !is_told(3, one) && !is_told(2, &[]));
        for (second, expected) in [(4, true), (5, true), (6, false)] {
            let created = at(&format!("2026-01-01T00:00:0{second}Z"), "SuccessfulCreate");
            assert_eq!(is_told(2, &[created, refused.clone()]), expected, "{second}");
        }
        for (kind, target, events, words) in [
            ("Job", json!({}), vec![refused], "exceeded quota"),
            ("Job", json!({}), vec![], "there is none"),
            (
                "StatefulSet",
                json!({ "spec": { "replicas": 2 } }),
                vec![],
                "asks for 2 pods",
            ),
        ] {
            let (trouble, text) = said(kind, target, &events);
            assert!(trouble && text.contains(words), "{words:?} is not in: {text}");
        }
    }
}
