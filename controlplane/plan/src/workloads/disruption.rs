//! The status of a `PodDisruptionBudget`: how many of its pods may be evicted now
//! (`pkg/controller/disruption/disruption.go`).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Map, Value, json};

use crate::{
    objects::{Meta as _, name, printed, seconds, target},
    pod::{Pod, is_ready},
    step::{DISRUPTION_BUDGETS, Note, Outcome, PODS, PatchKind, Plan, Severity, Step},
    workloads::pod_template::note,
};

/// Time within which an eviction must show; afterwards the pod counts as not disrupted
/// (`DeletionTimeout`).
const EVICTION: SignedDuration = SignedDuration::from_mins(2);
const ALLOWED: &str = "DisruptionAllowed";

/// A pod that the budget selects.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its controller.
    pub manager: Manager,
}

/// Controller of a pod.
#[derive(Debug, Clone)]
pub enum Manager {
    /// It has none.
    None,
    /// Its uid and desired number of pods.
    Scaled(String, i32),
    /// The reason why that number is not known.
    Unknown(String),
}

/// True if the budget depends on the sizes of the pods' controllers.
pub fn needs_sizes(budget: &PodDisruptionBudget) -> bool {
    let percent = |number: &IntOrString| matches!(number, IntOrString::String(_));
    budget
        .spec
        .as_ref()
        .is_some_and(|spec| spec.max_unavailable.is_some() || spec.min_available.as_ref().is_some_and(percent))
}

/// Updates the budget's status.
pub fn plan(budget: &PodDisruptionBudget, members: &[Member<'_>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let old = budget.status.clone().unwrap_or_default();
    let about = target(DISRUPTION_BUDGETS, budget);
    let tell = |severity, reason, message: String| Step::Event(note(&about, severity, reason, message));
    let mut events = Vec::new();
    if members.is_empty() {
        events.push(tell(Severity::Normal, "NoPods", "No matching pods found".to_owned()));
    }
    let (expected, desired) = match demand(budget, members) {
        Ok(demand) => demand,
        Err(error) => {
            let message = format!("Failed to calculate the number of expected pods: {error}");
            events.push(tell(Severity::Warning, "CalculateExpectedPodCountFailed", message));
            plan.stage(events);
            plan.stage(fail(budget, &old, error, now).into_iter().collect());
            return plan;
        }
    };
    if needs_sizes(budget) && members.iter().any(|member| matches!(member.manager, Manager::None)) {
        events.push(tell(Severity::Warning, "UnmanagedPods", unmanaged(budget)));
    }
    let Disrupted { pending, recheck, late } = disrupted(&old, members, now);
    if let Some(recheck) = recheck {
        plan.again(recheck);
    }
    events.extend(late.into_iter().map(|pod| Step::Event(not_deleted(budget, pod))));
    let healthy = count(members.iter().filter(|member| {
        let pod = member.pod;
        !pod.metadata.is_deleting() && is_ready(pod) && !pending.contains_key(name(pod))
    }));
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = budget.metadata.generation;
    let (status, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    let new = PodDisruptionBudgetStatus {
        conditions: Some(conditions(&old, (status, reason, String::new()), generation, now)),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disrupted_pods: Some(pending).filter(|pods| !pods.is_empty()),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: generation,
    };
    plan.stage(events);
    plan.stage(write(budget, &old, &new).into_iter().collect());
    plan
}

/// Allows no eviction while the number of expected pods is unknown (`failSafe`).
fn fail(budget: &PodDisruptionBudget, old: &PodDisruptionBudgetStatus, error: String, now: Timestamp) -> Option<Step> {
    let failed = ("False", "SyncFailed", error);
    let new = PodDisruptionBudgetStatus {
        disruptions_allowed: Some(0),
        conditions: Some(conditions(old, failed, old.observed_generation, now)),
        ..old.clone()
    };
    write(budget, old, &new)
}

fn unmanaged(budget: &PodDisruptionBudget) -> String {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status \
         of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
         please set \".spec.minAvailable\" field of the PDB to an integer value.",
        printed(selector)
    )
}

/// The event about a pod whose eviction has not shown in time.
fn not_deleted(budget: &PodDisruptionBudget, pod: &Pod) -> Note {
    // Upstream names the namespace twice, and not the budget.
    let namespace = budget.metadata.namespace();
    let message = format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
    note(&target(PODS, pod), Severity::Warning, "NotDeleted", message)
}

/// The event about a pod that several budgets select: it cannot be evicted (`getPdbForPod`).
pub fn several(pod: &Pod, first: &str) -> Step {
    let (namespace, name) = (pod.metadata.namespace(), name(pod));
    let message =
        format!("Pod {namespace:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily.");
    let about = target(PODS, pod);
    Step::Event(note(&about, Severity::Warning, "MultiplePodDisruptionBudgets", message))
}

fn count<T>(of: impl Iterator<Item = T>) -> i32 {
    i32::try_from(of.count()).unwrap_or(i32::MAX)
}

/// Evictions of a budget's pods.
#[derive(Default)]
struct Disrupted<'a> {
    /// Evictions that have not shown yet.
    pending: BTreeMap<String, Time>,
    /// Time until the first of them expires.
    recheck: Option<Duration>,
    /// Pods of those that have expired.
    late: Vec<&'a Pod>,
}

/// `buildDisruptedPodMap`.
fn disrupted<'a>(old: &PodDisruptionBudgetStatus, members: &[Member<'a>], now: Timestamp) -> Disrupted<'a> {
    let mut found = Disrupted::default();
    for (pod, at) in old.disrupted_pods.iter().flatten() {
        let member = members.iter().find(|member| name(member.pod) == pod);
        let Some(member) = member.filter(|member| !member.pod.metadata.is_deleting()) else {
            continue;
        };
        let left = at.0.duration_since(now) + EVICTION;
        if left.is_positive() {
            let left = left.unsigned_abs();
            found.recheck = Some(found.recheck.map_or(left, |before| before.min(left)));
            found.pending.insert(pod.clone(), at.clone());
        } else {
            found.late.push(member.pod);
        }
    }
    found
}

/// Expected pods, and how many of them must be healthy (`getExpectedPodCount`).
fn demand(budget: &PodDisruptionBudget, members: &[Member<'_>]) -> Result<(i32, i32), String> {
    let Some(spec) = &budget.spec else { return Ok((0, 0)) };
    let scale = || {
        let mut managers: BTreeMap<&str, i32> = BTreeMap::new();
        for member in members {
            match &member.manager {
                Manager::None => {}
                Manager::Scaled(uid, replicas) => {
                    managers.insert(uid, *replicas);
                }
                Manager::Unknown(error) => return Err(error.clone()),
            }
        }
        Ok(managers
            .values()
            .fold(0_i32, |sum, replicas| sum.saturating_add(*replicas)))
    };
    Ok(match (&spec.max_unavailable, &spec.min_available) {
        (Some(unavailable), _) => {
            let expected = scale()?;
            (expected, (expected - amount(unavailable, expected)).max(0))
        }
        (None, Some(IntOrString::Int(available))) => (count(members.iter()), *available),
        (None, Some(available)) => {
            let expected = scale()?;
            (expected, amount(available, expected))
        }
        (None, None) => (0, 0),
    })
}

/// A number, or a share of a whole, rounded up.
fn amount(of: &IntOrString, whole: i32) -> i32 {
    match of {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let share = (i64::from(whole) * percent + 99).div_euclid(100);
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}

/// The conditions with a new one: its status, reason and message.
fn conditions(
    old: &PodDisruptionBudgetStatus,
    (status, reason, message): (&str, &str, String),
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let before = conditions
        .iter()
        .find(|own| own.type_ == ALLOWED && own.status == status);
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: before.map_or_else(|| seconds(now), |own| own.last_transition_time.clone()),
    };
    conditions.retain(|own| own.type_ != ALLOWED);
    conditions.push(condition);
    conditions
}

/// A patch of a status that has changed; it fails if an eviction was allowed meanwhile.
fn write(
    budget: &PodDisruptionBudget,
    old: &PodDisruptionBudgetStatus,
    new: &PodDisruptionBudgetStatus,
) -> Option<Step> {
    // A missing map equals an empty one.
    let shown = |status: &PodDisruptionBudgetStatus| PodDisruptionBudgetStatus {
        disrupted_pods: status.disrupted_pods.clone().filter(|pods| !pods.is_empty()),
        ..status.clone()
    };
    if shown(new) == shown(old) {
        return None;
    }
    let mut status = json!(new);
    // A merge patch removes only the keys that it names.
    let gone = old
        .disrupted_pods
        .iter()
        .flatten()
        .map(|(pod, _)| (pod.clone(), Value::Null));
    let mut pods: Map<String, Value> = gone.collect();
    pods.extend(
        new.disrupted_pods
            .iter()
            .flatten()
            .map(|(pod, at)| (pod.clone(), json!(at))),
    );
    if let (Some(members), false) = (status.as_object_mut(), pods.is_empty()) {
        members.insert("disruptedPods".to_owned(), Value::Object(pods));
    }
    Some(Step::Patch {
        target: target(DISRUPTION_BUDGETS, budget),
        subresource: Some("status"),
        kind: PatchKind::Merge,
        body: Box::new(json!({
            "metadata": { "resourceVersion": budget.metadata.resource_version },
            "status": status,
        })),
        outcome: Outcome::default(),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::from_value;

    use super::*;

    /// `members`: names; those in lower case are ready.
    fn check(spec: &Value, status: &Value, members: &str, replicas: i32) -> String {
        let budget = json!({ "metadata": { "name": "b", "generation": 2 }, "spec": spec, "status": status });
        let budget: PodDisruptionBudget = from_value(budget).unwrap();
        let pods: Vec<Pod> = members
            .chars()
            .map(|name| {
                let ready = if name.is_lowercase() { "True" } else { "False" };
                let conditions = json!([{ "type": "Ready", "status": ready }]);
                let pod = json!({ "metadata": { "name": name.to_string() }, "status": { "conditions": conditions } });
                from_value(pod).unwrap()
            })
            .collect();
        let members = pods.iter().map(|pod| Member {
            pod,
            manager: Manager::Scaled("uid".to_owned(), replicas),
        });
        let members: Vec<_> = members.collect();
        let plan = plan(&budget, &members, "2026-01-01T00:10:00Z".parse().unwrap());
        let again = plan.again.map(|again| again.as_secs());
        let Some(Step::Patch { body, .. }) = plan.stages.last().and_then(|stage| stage.last()) else {
            return "nothing".to_owned();
        };
        let status = &body["status"];
        format!(
            "healthy {} of {}, needs {}, may lose {}: {} {} {again:?}",
            status["currentHealthy"],
            status["expectedPods"],
            status["desiredHealthy"],
            status["disruptionsAllowed"],
            status["conditions"][0]["reason"].as_str().unwrap(),
            status["disruptedPods"],
        )
    }

    #[test]
    fn how_many_may_go() {
        let none = json!({});
        for (spec, members, expected) in [
            (
                json!({ "minAvailable": 2 }),
                "abc",
                "healthy 3 of 3, needs 2, may lose 1: SufficientPods",
            ),
            (
                json!({ "minAvailable": 2 }),
                "abC",
                "healthy 2 of 3, needs 2, may lose 0: InsufficientPods",
            ),
            (
                json!({ "maxUnavailable": 1 }),
                "abc",
                "healthy 3 of 4, needs 3, may lose 0: InsufficientPods",
            ),
            (
                json!({ "maxUnavailable": "50%" }),
                "abc",
                "healthy 3 of 4, needs 2, may lose 1: SufficientPods",
            ),
            (
                json!({ "minAvailable": "60%" }),
                "abcd",
                "healthy 4 of 4, needs 3, may lose 1: SufficientPods",
            ),
            (
                json!({ "minAvailable": 0 }),
                "",
                "healthy 0 of 0, needs 0, may lose 0: InsufficientPods",
            ),
        ] {
            assert_eq!(
                check(&spec, &none, members, 4),
                format!("{expected} null None"),
                "{spec} {members}"
            );
        }
    }

    #[test]
    fn an_eviction_counts_until_it_shows_or_is_given_up() {
        let spec = json!({ "minAvailable": 1 });
        let status = json!({ "disruptedPods": {
            "a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:07:00Z", "gone": "2026-01-01T00:09:30Z",
        } });
        assert_eq!(
            check(&spec, &status, "abc", 3),
            "healthy 2 of 3, needs 1, may lose 1: SufficientPods {\"a\":\"2026-01-01T00:09:00Z\",\"b\":null,\"gone\":null} \
             Some(60)"
        );
    }

    #[test]
    fn a_status_that_is_right_stays() {
        let status = json!({
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0, "observedGeneration": 2,
            "conditions": [{ "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2 }],
        });
        assert_eq!(check(&json!({ "minAvailable": 1 }), &status, "a", 1), "nothing");
        // The status after the last eviction has shown.
        let mut status = status;
        status["disruptedPods"] = json!({});
        assert_eq!(check(&json!({ "minAvailable": 1 }), &status, "a", 1), "nothing");
    }

    /// Events and conditions of a budget whose pods have these controllers.
    fn told(spec: &Value, status: &Value, managers: &[Manager]) -> String {
        let metadata = json!({ "name": "b", "namespace": "ns", "generation": 2 });
        let budget = json!({ "metadata": metadata, "spec": spec, "status": status });
        let budget: PodDisruptionBudget = from_value(budget).unwrap();
        let pod = json!({ "metadata": { "name": "a", "namespace": "ns" } });
        let pod: Pod = from_value(pod).unwrap();
        let members: Vec<_> = managers
            .iter()
            .cloned()
            .map(|manager| Member { pod: &pod, manager })
            .collect();
        let plan = plan(&budget, &members, "2026-01-01T00:10:00Z".parse().unwrap());
        let steps = plan.stages.iter().flatten().map(|step| match step {
            Step::Event(note) => format!(
                "{} {}: {}",
                note.about.kind.as_deref().unwrap(),
                note.reason,
                note.message
            ),
            Step::Patch { body, .. } => {
                let status = &body["status"];
                format!(
                    "{} {} {} {}",
                    status["disruptionsAllowed"],
                    status["observedGeneration"],
                    status["conditions"][0]["reason"],
                    status["conditions"][0]["message"]
                )
            }
            Step::Create { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_) => step.to_string(),
        });
        steps.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn pods_that_cannot_be_counted_are_told() {
        let selector = json!({
            "matchLabels": { "app": "web" },
            "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] }],
        });
        let spec = |name: &str, number: Value| json!({ "selector": selector, name: number });
        let unknown = || Manager::Unknown("jobs.batch does not implement the scale subresource".to_owned());
        let seen = json!({ "observedGeneration": 1, "disruptionsAllowed": 1, "conditions": [] });
        let late = json!({ "observedGeneration": 2, "disruptedPods": { "a": "2026-01-01T00:07:00Z" } });
        let lines = [
            told(&spec("minAvailable", json!(1)), &json!({}), &[]),
            told(&spec("maxUnavailable", json!(1)), &json!({}), &[Manager::None]),
            told(&spec("minAvailable", json!(1)), &json!({}), &[Manager::None]),
            told(&spec("minAvailable", json!("50%")), &seen, &[unknown()]),
            told(&spec("minAvailable", json!(1)), &json!({}), &[unknown()]),
            told(&spec("minAvailable", json!(1)), &late, &[unknown()]),
        ];
        expect![[r#"
            PodDisruptionBudget NoPods: No matching pods found
            0 2 "InsufficientPods" ""
            PodDisruptionBudget UnmanagedPods: Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:tier,Operator:In,Values:[a b],},},}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an integer value.
            0 2 "InsufficientPods" ""
            0 2 "InsufficientPods" ""
            PodDisruptionBudget CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: jobs.batch does not implement the scale subresource
            0 1 "SyncFailed" "jobs.batch does not implement the scale subresource"
            0 2 "InsufficientPods" ""
            Pod NotDeleted: Pod was expected by PDB ns/ns to be deleted but it wasn't
            0 2 "InsufficientPods" """#]].assert_eq(&lines.join("\n"));
    }
}
