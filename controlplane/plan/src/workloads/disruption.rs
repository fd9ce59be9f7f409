//! The status of a `PodDisruptionBudget`: how many of its pods may be evicted now.

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

use crate::objects::{Meta as _, name, seconds, target};
use crate::pod::{Pod, is_ready};
use crate::step::{DISRUPTION_BUDGETS, Outcome, PatchKind, Plan, Step};

/// Time within which an eviction must show; afterwards the pod counts as not disrupted
/// (`DeletionTimeout`).
const EVICTION: SignedDuration = SignedDuration::from_mins(2);
const ALLOWED: &str = "DisruptionAllowed";

/// A pod that the budget selects, with the uid and replicas of its controller.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its controller, if it has one.
    pub manager: Option<(String, i32)>,
}

/// Updates the budget's status.
pub fn plan(budget: &PodDisruptionBudget, members: &[Member<'_>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let old = budget.status.clone().unwrap_or_default();
    let (disrupted, recheck) = disrupted(&old, members, now);
    if let Some(recheck) = recheck {
        plan.again(recheck);
    }
    let (expected, desired) = demand(budget, members);
    let healthy = count(members.iter().filter(|member| {
        let pod = member.pod;
        !pod.metadata.is_deleting() && is_ready(pod) && !disrupted.contains_key(name(pod))
    }));
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = budget.metadata.generation;
    let new = PodDisruptionBudgetStatus {
        conditions: Some(conditions(&old, allowed, generation, now)),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: generation,
    };
    // A missing map equals an empty one.
    let shown = PodDisruptionBudgetStatus {
        disrupted_pods: old.disrupted_pods.clone().filter(|pods| !pods.is_empty()),
        ..old.clone()
    };
    if new != shown {
        plan.stage(vec![write(budget, &old, &new)]);
    }
    plan
}

fn count<T>(of: impl Iterator<Item = T>) -> i32 {
    i32::try_from(of.count()).unwrap_or(i32::MAX)
}

/// Evictions that have not shown yet, and the time until the first of them expires.
fn disrupted(
    old: &PodDisruptionBudgetStatus,
    members: &[Member<'_>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let mut pending = BTreeMap::new();
    let mut recheck: Option<Duration> = None;
    for (pod, at) in old.disrupted_pods.iter().flatten() {
        let member = members.iter().find(|member| name(member.pod) == pod);
        let left = at.0.duration_since(now) + EVICTION;
        if member.is_some_and(|member| !member.pod.metadata.is_deleting()) && left.is_positive() {
            let left = left.unsigned_abs();
            recheck = Some(recheck.map_or(left, |before| before.min(left)));
            pending.insert(pod.clone(), at.clone());
        }
    }
    (pending, recheck)
}

/// Expected pods, and how many of them must be healthy.
fn demand(budget: &PodDisruptionBudget, members: &[Member<'_>]) -> (i32, i32) {
    let Some(spec) = &budget.spec else { return (0, 0) };
    let scale = || {
        let managers: BTreeMap<&str, i32> = members
            .iter()
            .filter_map(|member| member.manager.as_ref())
            .map(|(uid, replicas)| (uid.as_str(), *replicas))
            .collect();
        managers
            .values()
            .fold(0_i32, |sum, replicas| sum.saturating_add(*replicas))
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(unavailable), _) => {
            let expected = scale();
            (expected, (expected - amount(unavailable, expected)).max(0))
        }
        (None, Some(IntOrString::Int(available))) => (count(members.iter()), *available),
        (None, Some(available)) => {
            let expected = scale();
            (expected, amount(available, expected))
        }
        (None, None) => (count(members.iter()), 0),
    }
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

fn conditions(
    old: &PodDisruptionBudgetStatus,
    allowed: i32,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let (status, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    let before = conditions
        .iter()
        .find(|own| own.type_ == ALLOWED && own.status == status);
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: generation,
        last_transition_time: before.map_or_else(|| seconds(now), |own| own.last_transition_time.clone()),
    };
    conditions.retain(|own| own.type_ != ALLOWED);
    conditions.push(condition);
    conditions
}

/// A patch that fails if an eviction was allowed meanwhile.
fn write(budget: &PodDisruptionBudget, old: &PodDisruptionBudgetStatus, new: &PodDisruptionBudgetStatus) -> Step {
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
    Step::Patch {
        target: target(DISRUPTION_BUDGETS, budget),
        subresource: Some("status"),
        kind: PatchKind::Merge,
        body: Box::new(json!({
            "metadata": { "resourceVersion": budget.metadata.resource_version },
            "status": status,
        })),
        outcome: Outcome::default(),
    }
}

#[cfg(test)]
mod tests {
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
            manager: Some(("uid".to_owned(), replicas)),
        });
        let members: Vec<_> = members.collect();
        let plan = plan(&budget, &members, "2026-01-01T00:10:00Z".parse().unwrap());
        let again = plan.again.map(|again| again.as_secs());
        let Some(Step::Patch { body, .. }) = plan.stages.first().and_then(|stage| stage.first()) else {
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
}
