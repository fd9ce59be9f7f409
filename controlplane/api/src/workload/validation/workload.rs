//! Validation that workloads share: selectors, templates and counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::selector::label_selector;
use super::{IMMUTABLE, annotations, metadata, pod_spec};
use crate::value::invalid::Invalid;
use crate::value::selector::LabelSelector;

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
regex used for validation is '[0-9]+%')";

/// Validates the selector at `spec.selector` and the template at `spec.template` that it must
/// select; `kind` is the workload's. An empty selector counts as missing, one with empty members as
/// empty: see [`keep_empty_selector`].
pub fn selector_and_template(selector: &Structure, template: Option<&PodTemplateSpec>, kind: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    label_selector(&mut errors, selector, "spec.selector");
    let is_missing = *selector == Structure::default();
    let invalid = |detail: &str| Invalid::rendered("spec.selector", shown(selector), detail);
    let parsed = LabelSelector::of(Some(selector));
    let is_empty = parsed.as_ref().is_ok_and(LabelSelector::is_everything);
    let labels = template
        .and_then(|template| template.metadata.as_ref())
        .and_then(|metadata| metadata.labels.as_ref());
    let mismatch = match &parsed {
        Ok(parsed) if template.is_some() && (is_missing || !parsed.matches_option(labels)) => {
            let value = serde_json::to_string(&labels).unwrap_or_default();
            let detail = "`selector` does not match template `labels`";
            Some(Invalid::rendered("spec.template.metadata.labels", value, detail))
        }
        Ok(_) | Err(_) => None,
    };
    // Upstream uses this name for replica sets too, and validates daemon sets in another order.
    let name = match kind {
        "ReplicaSet" => "deployment".to_owned(),
        other => other.to_lowercase(),
    };
    let empty = invalid(&format!("empty selector is invalid for {name}"));
    match kind {
        "DaemonSet" => {
            errors.extend(mismatch);
            errors.extend((is_empty && !is_missing).then_some(empty));
        }
        _ if is_missing => {
            errors.push(Invalid::required("spec.selector", ""));
            errors.extend(mismatch);
        }
        _ if is_empty => errors.push(empty),
        _ => {
            let detail = if kind == "StatefulSet" {
                ""
            } else {
                "invalid label selector"
            };
            errors.extend(parsed.is_err().then(|| invalid(detail)));
            errors.extend(mismatch);
        }
    }
    match template {
        None => errors.push(Invalid::required("spec.template", "")),
        // Template errors are reported only once the selector is valid.
        Some(template) if parsed.is_ok() || kind == "DaemonSet" => errors.extend(self::template(template, kind)),
        Some(_) => {}
    }
    errors
}

/// Marks the selector at `spec.selector` if the JSON has an empty one, which the type cannot tell
/// from a missing one.
pub fn keep_empty_selector(selector: &mut Structure, json: &[u8]) {
    #[derive(Deserialize)]
    struct Document {
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    struct Spec {
        selector: Option<IgnoredAny>,
    }
    if *selector != Structure::default() {
        return;
    }
    let document = serde_json::from_slice::<Document>(json).ok();
    if document.and_then(|document| document.spec?.selector).is_some() {
        selector.match_labels = Some(BTreeMap::new());
    }
}

/// Validates that the selector at `spec.selector` does not change.
pub fn same_selector(errors: &mut Vec<Invalid>, new: Option<&Structure>, old: Option<&Structure>) {
    let parts = |selector: Option<&Structure>| {
        let selector = selector.cloned().unwrap_or_default();
        // Empty is the same as none.
        let labels = selector.match_labels.filter(|labels| !labels.is_empty());
        let expressions = selector.match_expressions.filter(|list| !list.is_empty());
        (labels, expressions)
    };
    if parts(new) != parts(old) {
        let value = new.map_or_else(|| "null".to_owned(), shown);
        errors.push(Invalid::rendered("spec.selector", value, IMMUTABLE));
    }
}

/// Selector in upstream's notation: labels first, without empty members.
fn shown(selector: &Structure) -> String {
    let mut members = Vec::new();
    if let Some(labels) = selector.match_labels.as_ref().filter(|labels| !labels.is_empty()) {
        let labels = serde_json::to_string(labels).unwrap_or_default();
        members.push(format!("\"matchLabels\":{labels}"));
    }
    if let Some(expressions) = selector.match_expressions.as_ref().filter(|list| !list.is_empty()) {
        let expressions = serde_json::to_string(expressions).unwrap_or_default();
        members.push(format!("\"matchExpressions\":{expressions}"));
    }
    format!("{{{}}}", members.join(","))
}

/// Validates a template at a path.
pub fn pod_template(template: &PodTemplateSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if let Some(own) = &template.metadata {
        errors.extend(metadata::labels(own.labels.as_ref(), &format!("{path}.labels")));
        errors.extend(metadata::annotations(
            own.annotations.as_ref(),
            &format!("{path}.annotations"),
        ));
    }
    match &template.spec {
        Some(spec) => {
            errors.extend(pod_spec::validate(spec, &format!("{path}.spec")));
            errors.extend(no_ephemeral(spec, &format!("{path}.spec")));
            let own = template.metadata.as_ref().and_then(|own| own.annotations.as_ref());
            annotations::of_pod(&mut errors, own, spec, &format!("{path}.annotations"));
            annotations::contradictions(&mut errors, own, spec, &format!("{path}.spec"));
        }
        None => errors.push(Invalid::required(format!("{path}.spec.containers"), "")),
    }
    errors
}

/// Reports a template with ephemeral containers, which only a running pod may have.
fn no_ephemeral(spec: &PodSpec, path: &str) -> Option<Invalid> {
    let has_some = spec.ephemeral_containers.as_ref().is_some_and(|own| !own.is_empty());
    let detail = "ephemeral containers not allowed in pod template";
    has_some.then(|| Invalid::forbidden(format!("{path}.ephemeralContainers"), detail))
}

fn template(template: &PodTemplateSpec, kind: &str) -> Vec<Invalid> {
    let mut errors = pod_template(template, "spec.template");
    let Some(spec) = &template.spec else {
        return errors;
    };
    if let Some(policy) = spec
        .restart_policy
        .as_deref()
        .filter(|policy| matches!(*policy, "Never" | "OnFailure"))
    {
        errors.push(Invalid::not_supported(
            "spec.template.spec.restartPolicy",
            policy,
            &["Always"],
        ));
    }
    if spec.active_deadline_seconds.is_some() {
        let kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Invalid::forbidden("spec.template.spec.activeDeadlineSeconds", detail));
    }
    errors
}

/// Validates a non-negative number or a percentage; returns its value, in percent for the latter.
pub fn number_or_percent(errors: &mut Vec<Invalid>, field: &str, value: &IntOrString) -> Option<i32> {
    match value {
        IntOrString::Int(number) => {
            super::non_negative(errors, field, i64::from(*number));
            Some(*number)
        }
        IntOrString::String(text) => {
            let digits = text
                .strip_suffix('%')
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
            let percent = digits.and_then(|digits| digits.parse().ok());
            if percent.is_none() {
                errors.push(Invalid::value(field, text, PERCENT));
            }
            percent
        }
    }
}
