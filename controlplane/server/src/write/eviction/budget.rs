//! `PodDisruptionBudget` checks of an eviction.

use api::selector::LabelSelector;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use store::{Entry, Prefix, Write};

use crate::request::context::Context;
use crate::request::failure::{Cause, Failure, GroupResource, Target};
use crate::request::object;

/// Evictions that the disruption controller may not have seen yet; more are refused.
const UNSEEN: usize = 2000;
const VIOLATES: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Takes one disruption from the pod's budget: returns the write of the budget, or `None` when none
/// is needed.
///
/// # Errors
/// 429 when the budget allows none, 500 when there are two.
pub(super) fn charge(context: &Context, pod: &Pod, now: Timestamp) -> Result<Option<Write>, Failure> {
    if is_no_disruption(pod) {
        return Ok(None);
    }
    let mut budgets = matching(context, pod).into_iter();
    let Some((entry, mut budget)) = budgets.next() else {
        return Ok(None);
    };
    if budgets.next().is_some() {
        return Err(Failure::Unexpected {
            message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
                .to_owned(),
        });
    }
    if !api::pod::is_ready(pod) && is_free_when_unready(&budget) {
        return Ok(None);
    }
    take(&mut budget, pod, now)?;
    let registration = api::find("policy", "v1", "poddisruptionbudgets").ok_or(Failure::NoSuchResource)?;
    let (value, attributes) = object::encode(registration, &mut budget, object::managed(&entry))?;
    Ok(Some(Write::Update {
        key: entry.key.clone(),
        value,
        attributes,
        expected: entry.revision,
    }))
}

/// True if evicting the pod disrupts nothing: it has terminated, is pending or is being deleted.
fn is_no_disruption(pod: &Pod) -> bool {
    !api::pod::is_active(pod) || api::pod::phase(pod) == "Pending"
}

fn is_free_when_unready(budget: &PodDisruptionBudget) -> bool {
    let policy = budget
        .spec
        .as_ref()
        .and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    policy == Some("AlwaysAllow")
        || budget
            .status
            .as_ref()
            .map(healthy)
            .is_some_and(|(desired, current)| desired > 0 && current >= desired)
}

/// Pods that must be healthy, and that are.
fn healthy(status: &PodDisruptionBudgetStatus) -> (i32, i32) {
    (status.desired_healthy.unwrap_or(0), status.current_healthy.unwrap_or(0))
}

fn matching(context: &Context, pod: &Pod) -> Vec<(Entry, PodDisruptionBudget)> {
    let prefix = Prefix::namespace("policy", "poddisruptionbudgets", &context.info.namespace);
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let entries = context.store().present(&prefix).into_iter();
    entries
        .filter_map(|entry| {
            let budget: PodDisruptionBudget = serde_json::from_slice(&entry.bytes).ok()?;
            let selector = budget.spec.as_ref()?.selector.as_ref()?;
            let selector = LabelSelector::of(Some(selector)).ok()?;
            selector.matches(&labels).then_some((entry, budget))
        })
        .collect()
}

fn take(budget: &mut PodDisruptionBudget, pod: &Pod, now: Timestamp) -> Result<(), Failure> {
    let name = budget.metadata.name.clone().unwrap_or_default();
    let generation = budget.metadata.generation.unwrap_or(0);
    let status = budget.status.get_or_insert_default();
    if status.observed_generation.unwrap_or(0) < generation {
        let message = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refused(10, message));
    }
    let allowed = status.disruptions_allowed.unwrap_or(0);
    if allowed < 0 {
        return Err(broken(&name, "pdb disruptions allowed is negative"));
    }
    if status.disrupted_pods.as_ref().is_some_and(|pods| pods.len() > UNSEEN) {
        let because = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(broken(&name, because));
    }
    if allowed == 0 {
        return Err(refused(0, exhausted(&name, status)));
    }
    status.disruptions_allowed = Some(allowed - 1);
    if allowed == 1 {
        deny(status, generation, now);
    }
    let pods = status.disrupted_pods.get_or_insert_default();
    pods.insert(pod.metadata.name.clone().unwrap_or_default(), Time(now));
    Ok(())
}

fn exhausted(name: &str, status: &PodDisruptionBudgetStatus) -> String {
    let mut conditions = status.conditions.iter().flatten();
    let denied = conditions
        .find(|own| own.type_ == "DisruptionAllowed")
        .filter(|own| own.status == "False" && !own.message.is_empty());
    let refusal = format!("The disruption budget {name} does not allow evicting pods currently");
    if let Some(failed) = denied.filter(|own| own.reason == "SyncFailed") {
        return format!("{refusal} because it failed sync: {}", failed.message);
    }
    let (desired, current) = healthy(status);
    if current <= desired {
        return format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently");
    }
    match denied {
        Some(own) => format!("{refusal} ({}): {}", own.reason, own.message),
        // Evictions that do not show yet have used the allowance up, or no pods are expected.
        None => refusal,
    }
}

/// Says in the budget's conditions that nothing more is allowed.
fn deny(status: &mut PodDisruptionBudgetStatus, generation: i64, now: Timestamp) {
    let denied = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: "False".to_owned(),
        reason: "InsufficientPods".to_owned(),
        message: String::new(),
        observed_generation: Some(generation),
        last_transition_time: Time(now),
    };
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != denied.type_);
    conditions.push(denied);
}

fn refused(retry_after: i32, message: String) -> Failure {
    Failure::TooManyRequests {
        message: VIOLATES.into(),
        retry_after,
        causes: vec![Cause {
            reason: "DisruptionBudget".into(),
            field: String::new(),
            text: message.clone(),
            message,
        }],
    }
}

fn broken(name: &str, because: &str) -> Failure {
    Failure::Forbidden {
        target: Some(Target {
            resource: GroupResource::new("policy", "poddisruptionbudget"),
            name: name.to_owned(),
        }),
        because: because.to_owned(),
        causes: Vec::new(),
    }
}
