//! Rules that workloads share: a selector, a template, numbers.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{metadata, pod_spec};
use crate::invalid::Invalid;
use crate::selector::LabelSelector;

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
regex used for validation is '[0-9]+%')";

/// A selector at `spec.selector` and the template at `spec.template` that it must select; `kind` is the workload's, in
/// lower case.
pub fn selector_and_template(selector: &Structure, template: Option<&PodTemplateSpec>, kind: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let value = || serde_json::to_string(selector).unwrap_or_default();
    let parsed = LabelSelector::of(Some(selector));
    match &parsed {
        Ok(parsed) if parsed.is_everything() => {
            let detail = format!("empty selector is invalid for {kind}");
            errors.push(Invalid::rendered("spec.selector", value(), detail));
        }
        Ok(_) => {}
        Err(error) => errors.push(Invalid::rendered("spec.selector", value(), error.to_string())),
    }
    let Some(template) = template else {
        errors.push(Invalid::required("spec.template", ""));
        return errors;
    };
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    if parsed.is_ok_and(|selector| !selector.is_everything() && !selector.matches_option(labels)) {
        let value = serde_json::to_string(&labels).unwrap_or_default();
        let detail = "`selector` does not match template `labels`";
        errors.push(Invalid::rendered("spec.template.metadata.labels", value, detail));
    }
    errors.extend(self::template(template, kind));
    errors
}

/// A template at a path.
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
        Some(spec) => errors.extend(pod_spec::validate(spec, &format!("{path}.spec"))),
        None => errors.push(Invalid::required(format!("{path}.spec.containers"), "")),
    }
    errors
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
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Invalid::forbidden("spec.template.spec.activeDeadlineSeconds", detail));
    }
    errors
}

/// A number that is not negative, or a percentage; returns how much it is, in hundredths where it is one.
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
