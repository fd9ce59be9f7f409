//! Validation of the fields of a job's spec that depend on each other.

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicyRule,
};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{domain_prefixed_path, each, non_negative};

/// Maximum parallelism and maximum number of failed indexes of an indexed job.
const MOST: i32 = 100_000;
/// The same for an indexed job with more completions than that and a backoff limit per index.
const MOST_OF_MANY: i32 = 10_000;
const MOST_RULES: usize = 20;
const MOST_PATTERNS: usize = 20;
const MOST_EXIT_CODES: usize = 255;
const MOST_BYTES_OF_INDEXES: usize = 64 << 10;
const MOST_BYTES_OF_MANAGER: usize = 63;
const INDEXED: &str = "requires indexed completion mode";

/// Validates the spec.
pub(super) fn validate(spec: &JobSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        let detail = "when maxFailedIndexes is specified";
        errors.push(Invalid::required(format!("{path}.backoffLimitPerIndex"), detail));
    }
    match spec.completion_mode.as_deref() {
        Some("Indexed") => indexed(&mut errors, spec, path),
        None | Some("NonIndexed") => {
            for (name, number) in [
                ("backoffLimitPerIndex", spec.backoff_limit_per_index),
                ("maxFailedIndexes", spec.max_failed_indexes),
            ] {
                if let Some(number) = number {
                    errors.push(Invalid::value(format!("{path}.{name}"), number, INDEXED));
                }
            }
        }
        Some(_) => {}
    }
    if let Some(policy) = &spec.pod_failure_policy {
        failure_policy(&mut errors, spec, policy, &format!("{path}.podFailurePolicy.rules"));
    }
    if spec.pod_failure_policy.is_some() && spec.pod_replacement_policy.as_deref() == Some("TerminatingOrFailed") {
        let field = format!("{path}.podReplacementPolicy");
        errors.push(Invalid::not_supported(field, "TerminatingOrFailed", &["Failed"]));
    }
    if let Some(manager) = &spec.managed_by {
        let field = format!("{path}.managedBy");
        errors.extend(domain_prefixed_path(&field, manager));
        if manager.len() > MOST_BYTES_OF_MANAGER {
            errors.push(Invalid::too_long(field, MOST_BYTES_OF_MANAGER));
        }
    }
    if let Some(policy) = &spec.success_policy {
        let field = format!("{path}.successPolicy");
        if spec.completion_mode.as_deref() == Some("Indexed") {
            success_policy(&mut errors, spec, &policy.rules, &format!("{field}.rules"));
        } else {
            let value = serde_json::to_string(policy).unwrap_or_default();
            errors.push(Invalid::rendered(field, value, INDEXED));
        }
    }
    errors
}

fn indexed(errors: &mut Vec<Invalid>, spec: &JobSpec, path: &str) {
    let at_most = |errors: &mut Vec<Invalid>, name: &str, value: Option<i32>, most: i32, when: &str| {
        if let Some(value) = value.filter(|value| *value > most) {
            let detail = format!("must be less than or equal to {most}{when}");
            errors.push(Invalid::value(format!("{path}.{name}"), value, detail));
        }
    };
    let (pods, failed) = (spec.parallelism, spec.max_failed_indexes);
    at_most(errors, "parallelism", pods, MOST, " when completion mode is Indexed");
    if let Some(value) = failed.filter(|failed| spec.completions.is_some_and(|completions| *failed > completions)) {
        let detail = "must be less than or equal to completions";
        errors.push(Invalid::value(format!("{path}.maxFailedIndexes"), value, detail));
    }
    at_most(errors, "maxFailedIndexes", failed, MOST, "");
    let many = spec.completions.is_some_and(|completions| completions > MOST);
    if !many || spec.backoff_limit_per_index.is_none() {
        return;
    }
    if failed.is_none() {
        let detail = format!("must be specified when completions is above {MOST}");
        errors.push(Invalid::required(format!("{path}.maxFailedIndexes"), detail));
    }
    let when = format!(" when completions are above {MOST} and used with backoff limit per index");
    at_most(errors, "parallelism", pods, MOST_OF_MANY, &when);
    at_most(errors, "maxFailedIndexes", failed, MOST_OF_MANY, &when);
}

fn failure_policy(errors: &mut Vec<Invalid>, spec: &JobSpec, policy: &PodFailurePolicy, path: &str) {
    if policy.rules.len() > MOST_RULES {
        errors.push(Invalid::too_many(path, policy.rules.len(), MOST_RULES));
    }
    for (index, rule) in policy.rules.iter().enumerate() {
        failure_rule(errors, spec, rule, &format!("{path}[{index}]"));
    }
}

fn failure_rule(errors: &mut Vec<Invalid>, spec: &JobSpec, rule: &PodFailurePolicyRule, path: &str) {
    let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
    let action = rule.action.as_str();
    if known(errors, &format!("{path}.action"), action, &actions)
        && action == "FailIndex"
        && spec.backoff_limit_per_index.is_none()
    {
        let detail = "requires the backoffLimitPerIndex to be set";
        errors.push(Invalid::value(format!("{path}.action"), action, detail));
    }
    if let Some(codes) = &rule.on_exit_codes {
        exit_codes(errors, spec, codes, &format!("{path}.onExitCodes"));
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let field = format!("{path}.onPodConditions");
    if patterns.len() > MOST_PATTERNS {
        errors.push(Invalid::too_many(&field, patterns.len(), MOST_PATTERNS));
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let kind = &pattern.type_;
        each(
            errors,
            &format!("{field}[{index}].type"),
            kind,
            names::qualified_name(kind),
        );
        let status = pattern.status.as_deref().unwrap_or_default();
        known(
            errors,
            &format!("{field}[{index}].status"),
            status,
            &["False", "True", "Unknown"],
        );
    }
    let detail = match (&rule.on_exit_codes, patterns) {
        (Some(_), [_, ..]) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (None, []) => "specifying one of OnExitCodes and OnPodConditions is required",
        (Some(_), []) | (None, [_, ..]) => return,
    };
    errors.push(Invalid::rendered(path, String::new(), detail));
}

/// Checks that a text is one of the supported values; returns true if it is.
fn known(errors: &mut Vec<Invalid>, field: &str, value: &str, supported: &[&str]) -> bool {
    if value.is_empty() {
        let quoted: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
        let detail = format!("valid values: [{}]", quoted.join(" "));
        errors.push(Invalid::required(field, detail));
    } else if !supported.contains(&value) {
        errors.push(Invalid::not_supported(field, value, supported));
    }
    supported.contains(&value)
}

fn exit_codes(errors: &mut Vec<Invalid>, spec: &JobSpec, codes: &PodFailurePolicyOnExitCodesRequirement, path: &str) {
    known(errors, &format!("{path}.operator"), &codes.operator, &["In", "NotIn"]);
    let pod = spec.template.spec.as_ref();
    let mut containers = pod
        .into_iter()
        .flat_map(|pod| pod.containers.iter().chain(pod.init_containers.iter().flatten()));
    if let Some(name) = &codes.container_name
        && !containers.any(|container| container.name == *name)
    {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(Invalid::value(format!("{path}.containerName"), name, detail));
    }
    let field = format!("{path}.values");
    let values = codes.values.as_slice();
    let shown = || serde_json::to_string(values).unwrap_or_default();
    if values.is_empty() {
        errors.push(Invalid::rendered(&field, shown(), "at least one value is required"));
    } else if values.len() > MOST_EXIT_CODES {
        errors.push(Invalid::too_many(&field, values.len(), MOST_EXIT_CODES));
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, value) in values.iter().enumerate() {
        if codes.operator == "In" && *value == 0 {
            let detail = "must not be 0 for the In operator";
            errors.push(Invalid::value(format!("{field}[{index}]"), value, detail));
        }
        if !seen.insert(value) {
            errors.push(Invalid::duplicate(format!("{field}[{index}]"), value));
        }
    }
    if !values.is_sorted() {
        errors.push(Invalid::rendered(&field, shown(), "must be ordered"));
    }
}

fn success_policy(errors: &mut Vec<Invalid>, spec: &JobSpec, rules: &[SuccessPolicyRule], path: &str) {
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(Invalid::required(path, detail));
    }
    if rules.len() > MOST_RULES {
        errors.push(Invalid::too_many(path, rules.len(), MOST_RULES));
    }
    let completions = spec.completions.unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        success_rule(errors, rule, completions, &format!("{path}[{index}]"));
    }
}

fn success_rule(errors: &mut Vec<Invalid>, rule: &SuccessPolicyRule, completions: i32, path: &str) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(Invalid::required(path, detail));
    }
    let field = format!("{path}.succeededIndexes");
    let indexes = rule.succeeded_indexes.as_deref().map(|indexes| {
        if indexes.len() > MOST_BYTES_OF_INDEXES {
            errors.push(Invalid::too_long(&field, MOST_BYTES_OF_INDEXES));
        }
        count_indexes(indexes, completions).unwrap_or_else(|because| {
            let detail = format!("error parsing succeededIndexes: {because}");
            errors.push(Invalid::value(&field, indexes, detail));
            0
        })
    });
    let Some(count) = rule.succeeded_count else { return };
    let field = format!("{path}.succeededCount");
    non_negative(errors, &field, count.into());
    if count > completions {
        let detail = format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.push(Invalid::value(&field, count, detail));
    }
    if let Some(indexes) = indexes.filter(|indexes| i64::from(count) > *indexes) {
        let detail = format!(
            "must be less than or equal to {indexes} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.push(Invalid::value(&field, count, detail));
    }
}

/// Number of indexes in a text like `0,2-4`, for this number of completions.
fn count_indexes(text: &str, completions: i32) -> Result<i64, String> {
    let number = |text: &str| match text.parse::<i64>() {
        Ok(number) if number >= i64::from(completions) => Err(format!("too large index: {text:?}")),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("cannot convert string to integer for index: {text:?}")),
    };
    let falls = |previous: i64, current: i64| format!("non-increasing order, previous: {previous}, current: {current}");
    let (mut last, mut total) = (None, 0);
    for interval in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = match interval.split('-').collect::<Vec<_>>().as_slice() {
            [one] => (number(one)?, number(one)?),
            [first, end] => {
                let (first, end) = (number(first)?, number(end)?);
                if first >= end {
                    return Err(falls(first, end));
                }
                (first, end)
            }
            _ => {
                return Err(format!(
                    "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
        };
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(falls(last, first));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}
