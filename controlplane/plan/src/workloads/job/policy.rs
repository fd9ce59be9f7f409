//! `podFailurePolicy` and `successPolicy` (`pkg/controller/job/pod_failure_policy.go`,
//! `success_policy.go`).

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyRule, SuccessPolicyRule};

use super::indexes::Indexes;
use crate::objects::{Meta as _, name};
use crate::pod::{Attempt, Pod};

/// Action of a rule for a failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Counts against the limits, as without a rule.
    Count,
    /// Is not counted.
    Ignore,
    /// Fails the index.
    FailIndex,
    /// Fails the Job with this message.
    FailJob(String),
}

/// Name of the action of the first rule that matches a failed pod, if any.
pub fn action_on_failure<'a>(spec: &'a JobSpec, pod: &Pod) -> Option<&'a str> {
    let attempt = pod.attempt.as_deref()?;
    let mut rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let met = rules.find(|rule| meets(rule, attempt, pod).is_some())?;
    Some(&met.action)
}

/// Action of the first rule that matches a failed pod.
pub(super) fn on_failure(spec: &JobSpec, pod: &Pod) -> Action {
    let attempt = pod.attempt.as_deref();
    let rules = spec
        .pod_failure_policy
        .iter()
        .flat_map(|policy| &policy.rules)
        .enumerate();
    for (number, rule) in rules {
        let Some(why) = attempt.and_then(|attempt| meets(rule, attempt, pod)) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => Action::Ignore,
            "FailIndex" => Action::FailIndex,
            "FailJob" => Action::FailJob(format!("{why} matching FailJob rule at index {number}")),
            _ => Action::Count,
        };
    }
    Action::Count
}

/// Reason why a rule matches a pod, in the words of the Job's condition.
fn meets(rule: &PodFailurePolicyRule, attempt: &Attempt, pod: &Pod) -> Option<String> {
    let (namespace, name) = (pod.metadata.namespace(), name(pod));
    if let Some(codes) = &rule.on_exit_codes {
        let meets = |(container, code): &&(Box<str>, i32)| {
            let named = codes
                .container_name
                .as_deref()
                .is_none_or(|wanted| wanted == &**container);
            named
                && match codes.operator.as_str() {
                    "In" => codes.values.contains(code),
                    "NotIn" => !codes.values.contains(code),
                    _ => false,
                }
        };
        let (container, code) = attempt.exits.iter().find(meets)?;
        return Some(format!(
            "Container {container} for pod {namespace}/{name} failed with exit code {code}"
        ));
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let mut conditions = attempt.conditions.iter();
    let (kind, _) = conditions.find(|(kind, status)| {
        let mut patterns = patterns.iter();
        patterns.any(|pattern| pattern.type_ == **kind && pattern.status.as_deref().unwrap_or("True") == &**status)
    })?;
    Some(format!("Pod {namespace}/{name} has condition {kind}"))
}

/// Message for the success policy rule that is met, in the words of the Job's condition.
pub(super) fn on_success(spec: &JobSpec, completions: u32, succeeded: &Indexes) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let rules = spec.success_policy.iter().flat_map(|policy| &policy.rules);
    let met = |rule: &SuccessPolicyRule| {
        let count = rule.succeeded_count.and_then(|count| u32::try_from(count).ok());
        let Some(indexes) = rule.succeeded_indexes.as_deref() else {
            return count.is_some_and(|count| succeeded.total() >= count);
        };
        let required = Indexes::parse(indexes, completions);
        let common = required.common(succeeded);
        !required.is_empty() && (common == required.total() || count.is_some_and(|count| common >= count))
    };
    let number = rules.into_iter().position(met)?;
    Some(format!("Matched rules at index {number}"))
}
