//! Validation of webhooks, with upstream's messages (`pkg/apis/admissionregistration/validation`).

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, RuleWithOperations, ServiceReference, WebhookClientConfig,
};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::url::Url;
use crate::workload::validation::each;
use crate::workload::validation::selector::label_selector;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// Side effect classes that a new webhook may have.
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const MOST_CONDITIONS: usize = 64;

/// Validates the webhooks of a configuration.
pub(super) fn validate(webhooks: &[MutatingWebhook]) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let mut known = BTreeSet::new();
    for (index, own) in webhooks.iter().enumerate() {
        let path = format!("webhooks[{index}]");
        webhook(&mut errors, own, &path);
        let versions = format!("{path}.admissionReviewVersions");
        review_versions(&mut errors, &own.admission_review_versions, &versions);
        if !own.name.is_empty() && !known.insert(&own.name) {
            errors.push(Invalid::duplicate(format!("{path}.name"), &own.name));
        }
    }
    errors
}

fn webhook(errors: &mut Vec<Invalid>, webhook: &MutatingWebhook, path: &str) {
    qualified(errors, &webhook.name, &format!("{path}.name"));
    for (index, own) in webhook.rules.iter().flatten().enumerate() {
        rule(errors, own, &format!("{path}.rules[{index}]"));
    }
    let mut one_of = |field: &str, value: Option<&str>, known: &[&str]| {
        if let Some(value) = value.filter(|value| !known.contains(value)) {
            errors.push(Invalid::not_supported(format!("{path}.{field}"), value, known));
        }
    };
    one_of("failurePolicy", webhook.failure_policy.as_deref(), &["Fail", "Ignore"]);
    one_of("matchPolicy", webhook.match_policy.as_deref(), &["Equivalent", "Exact"]);
    let effects = Some(webhook.side_effects.as_str()).filter(|effects| !effects.is_empty());
    one_of("sideEffects", effects, &SIDE_EFFECTS);
    if effects.is_none() {
        let detail = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
        errors.push(Invalid::required(format!("{path}.sideEffects"), detail));
    }
    if let Some(seconds) = webhook.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(Invalid::value(format!("{path}.timeoutSeconds"), seconds, detail));
    }
    for (field, selector) in [
        ("namespaceSelector", &webhook.namespace_selector),
        ("objectSelector", &webhook.object_selector),
    ] {
        if let Some(selector) = selector {
            label_selector(errors, selector, &format!("{path}.{field}"));
        }
    }
    let policies = ["IfNeeded", "Never"];
    if let Some(policy) = &webhook.reinvocation_policy
        && !policies.contains(&policy.as_str())
    {
        let field = format!("{path}.reinvocationPolicy");
        errors.push(Invalid::not_supported(field, policy, &policies));
    }
    client(errors, &webhook.client_config, &format!("{path}.clientConfig"));
    conditions(
        errors,
        webhook.match_conditions.as_deref().unwrap_or_default(),
        &format!("{path}.matchConditions"),
    );
}

/// `IsFullyQualifiedName` of apimachinery's `pkg/util/validation`.
fn qualified(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    let wrong = names::dns1123_subdomain(name);
    if name.is_empty() {
        errors.push(Invalid::required(field, ""));
    } else if !wrong.is_empty() {
        errors.push(Invalid::value(field, name, wrong.join(",")));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.push(Invalid::value(field, name, detail));
    }
}

fn review_versions(errors: &mut Vec<Invalid>, versions: &[String], field: &str) {
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        return errors.push(Invalid::required(field, format!("must specify one of {known}")));
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if seen.insert(version) {
            each(errors, &field, version, names::dns1035_label(version));
        } else {
            errors.push(Invalid::value(field, version, "duplicate version"));
        }
    }
    if !versions.iter().any(|own| REVIEW_VERSIONS.contains(&own.as_str())) {
        let detail = format!("must include at least one of {known}");
        errors.push(Invalid::rendered(field, shown(versions), detail));
    }
}

fn shown(list: &[String]) -> String {
    serde_json::to_string(list).unwrap_or_default()
}

/// Reports a `*` that does not stand alone.
fn alone(errors: &mut Vec<Invalid>, list: &[String], field: &str, others: &str) {
    if list.len() > 1 && list.iter().any(|one| one == "*") {
        let detail = format!("if '*' is present, must not specify other {others}");
        errors.push(Invalid::rendered(field, shown(list), detail));
    }
}

pub(in crate::kinds) fn rule(errors: &mut Vec<Invalid>, rule: &RuleWithOperations, path: &str) {
    let (operations, field) = (
        rule.operations.as_deref().unwrap_or_default(),
        format!("{path}.operations"),
    );
    if operations.is_empty() {
        errors.push(Invalid::required(field.as_str(), ""));
    }
    alone(errors, operations, &field, "operations");
    for (index, operation) in operations.iter().enumerate() {
        if !OPERATIONS.contains(&operation.as_str()) {
            errors.push(Invalid::not_supported(
                format!("{field}[{index}]"),
                operation,
                &OPERATIONS,
            ));
        }
    }
    let (groups, field) = (
        rule.api_groups.as_deref().unwrap_or_default(),
        format!("{path}.apiGroups"),
    );
    if groups.is_empty() {
        errors.push(Invalid::required(field.as_str(), ""));
    }
    alone(errors, groups, &field, "API groups");
    let (versions, field) = (
        rule.api_versions.as_deref().unwrap_or_default(),
        format!("{path}.apiVersions"),
    );
    if versions.is_empty() {
        errors.push(Invalid::required(field.as_str(), ""));
    }
    alone(errors, versions, &field, "API versions");
    for (index, _) in versions.iter().enumerate().filter(|(_, version)| version.is_empty()) {
        errors.push(Invalid::required(format!("{field}[{index}]"), ""));
    }
    resources(
        errors,
        rule.resources.as_deref().unwrap_or_default(),
        &format!("{path}.resources"),
    );
    let scopes = ["*", "Cluster", "Namespaced"];
    if let Some(scope) = &rule.scope
        && !scopes.contains(&scope.as_str())
    {
        errors.push(Invalid::not_supported(format!("{path}.scope"), scope, &scopes));
    }
}

fn resources(errors: &mut Vec<Invalid>, list: &[String], field: &str) {
    if list.is_empty() {
        errors.push(Invalid::required(field, ""));
    }
    let (mut all_of, mut in_all) = (BTreeSet::new(), BTreeSet::new());
    let mut plain = false;
    for (index, own) in list.iter().enumerate() {
        let place = format!("{field}[{index}]");
        if own.is_empty() {
            errors.push(Invalid::required(place, ""));
            continue;
        }
        let Some((resource, part)) = own.split_once('/') else {
            plain = own != "*";
            continue;
        };
        let mut covered = |by: String| {
            let detail = format!("if '{by}' is present, must not specify {own}");
            errors.push(Invalid::value(place.as_str(), own, detail));
        };
        if all_of.contains(resource) {
            covered(format!("{resource}/*"));
        }
        if in_all.contains(part) {
            covered(format!("*/{part}"));
        }
        if part == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            in_all.insert(part);
        }
    }
    let has = |wanted: &str| list.iter().any(|own| own == wanted);
    if list.len() > 1 && has("*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(Invalid::rendered(field, shown(list), detail));
    }
    if has("*") && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(Invalid::rendered(field, shown(list), detail));
    }
}

fn client(errors: &mut Vec<Invalid>, client: &WebhookClientConfig, path: &str) {
    match (&client.url, &client.service) {
        (Some(url), None) => errors.extend(wrong_url(&format!("{path}.url"), url)),
        (None, Some(own)) => service(errors, own, &format!("{path}.service")),
        (Some(_), Some(_)) | (None, None) => {
            errors.push(Invalid::required(path, "exactly one of url or service is required"));
        }
    }
}

/// `ValidateWebhookURL` of apiserver's `pkg/util/webhook/validation.go`.
fn wrong_url(field: &str, text: &str) -> Vec<Invalid> {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            let detail = format!("url must be a valid URL: {error}{FORM}");
            return vec![Invalid::required(field, detail)];
        }
    };
    let mut errors = Vec::new();
    if url.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Invalid::value(field, &url.scheme, detail));
    }
    if url.host.is_empty() {
        errors.push(Invalid::value(
            field,
            &url.host,
            format!("host must be specified{FORM}"),
        ));
    }
    let mut unwanted = |value: Option<&str>, detail: &str| {
        if let Some(value) = value {
            errors.push(Invalid::value(field, value, detail));
        }
    };
    unwanted(url.user.as_deref(), "user information is not permitted in the URL");
    let fragment = Some(url.fragment.as_str()).filter(|text| !text.is_empty());
    unwanted(fragment, "fragments are not permitted in the URL");
    let query = Some(url.query.as_str()).filter(|text| !text.is_empty());
    unwanted(query, "query parameters are not permitted in the URL");
    errors
}

/// `ValidateWebhookService` of apiserver's `pkg/util/webhook/validation.go`.
fn service(errors: &mut Vec<Invalid>, service: &ServiceReference, path: &str) {
    for (field, value) in [("name", &service.name), ("namespace", &service.namespace)] {
        if value.is_empty() {
            errors.push(Invalid::required(format!("{path}.{field}"), ""));
        }
    }
    let port = service.port.unwrap_or(0);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(Invalid::value(format!("{path}.port"), port, detail));
    }
    let field = format!("{path}.path");
    let given = service.path.as_deref().unwrap_or_default();
    if matches!(given, "" | "/") {
        return;
    }
    if given == "//" {
        return errors.push(Invalid::value(field, given, "segment[0] may not be empty"));
    }
    if !given.starts_with('/') {
        errors.push(Invalid::value(field.as_str(), given, "must start with a '/'"));
    }
    // Upstream drops the first byte, whatever it is.
    let mut characters = given.chars();
    characters.next();
    let checked = characters.as_str();
    for (index, step) in checked.strip_suffix('/').unwrap_or(checked).split('/').enumerate() {
        if step.is_empty() {
            let detail = format!("segment[{index}] may not be empty");
            errors.push(Invalid::value(field.as_str(), given, detail));
            continue;
        }
        let wrong = names::dns1123_subdomain(step).into_iter();
        let wrong = wrong.map(|wrong| format!("segment[{index}]: {wrong}")).collect();
        each(errors, &field, given, wrong);
    }
}

pub(in crate::kinds) fn conditions(errors: &mut Vec<Invalid>, conditions: &[MatchCondition], path: &str) {
    if conditions.len() > MOST_CONDITIONS {
        errors.push(Invalid::too_many(path, conditions.len(), MOST_CONDITIONS));
    }
    let mut known = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if condition.expression.trim().is_empty() {
            errors.push(Invalid::required(format!("{path}.expression"), ""));
        }
        let (name, field) = (&condition.name, format!("{path}.name"));
        if name.is_empty() {
            errors.push(Invalid::required(field, ""));
            continue;
        }
        each(errors, &field, name, names::qualified_name(name));
        if !known.insert(name) {
            errors.push(Invalid::duplicate(field, name));
        }
    }
}
