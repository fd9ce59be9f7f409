//! The status of a `PodDisruptionBudget`: how many of its pods may be evicted now
//! (`pkg/controller/disruption/disruption.go`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::objects::{Meta as _, name, printed, seconds, target};
use crate::pod::{Pod, is_active, is_ready};
use crate::step::{DISRUPTION_BUDGETS, Note, PODS, Plan, Severity, Step};

/// Time within which an eviction must show; afterwards the pod counts as not disrupted
/// (`DeletionTimeout`).
const EVICTION: SignedDuration = SignedDuration::from_mins(2);
/// Time after which a pod that was to be deleted counts as kept (`stalePodDisruptionTimeout`).
const STALE: Duration = Duration::from_mins(2);
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
    let tell = |severity, reason, message: String| Step::Event(about.note(severity, reason, message));
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
    target(PODS, pod).note(Severity::Warning, "NotDeleted", message)
}

/// The event about a pod that several budgets select: it cannot be evicted (`getPdbForPod`).
pub fn multiple_budgets(pod: &Pod, first: &str) -> Step {
    let (namespace, name) = (pod.metadata.namespace(), name(pod));
    let message =
        format!("Pod {namespace:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily.");
    let about = target(PODS, pod);
    Step::Event(about.note(Severity::Warning, "MultiplePodDisruptionBudgets", message))
}

/// Resets the `DisruptionTarget` condition of a pod that was not deleted after all
/// (`syncStalePodDisruption`).
pub fn stale_disruption(pod: &Pod, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let since = pod.status.disrupted.as_deref();
    let Some(since) = since.filter(|_| is_active(pod)) else {
        return plan;
    };
    let passed = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
    let left = STALE.saturating_sub(passed);
    if !left.is_zero() {
        plan.again(left);
        return plan;
    }
    let condition = json!({
        "type": "DisruptionTarget", "status": "False", "reason": null, "message": null, "lastProbeTime": null,
        "lastTransitionTime": seconds(now), "observedGeneration": pod.metadata.observed(),
    });
    plan.stage(vec![target(PODS, pod).strategic_status(json!({
        "metadata": { "uid": pod.metadata.uid(), "resourceVersion": pod.metadata.resource_version() },
        "status": { "conditions": [condition] },
    }))]);
    plan
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
    Some(target(DISRUPTION_BUDGETS, budget).merge_status(json!({
        "metadata": { "resourceVersion": budget.metadata.resource_version },
        "status": status,
    })))
}
