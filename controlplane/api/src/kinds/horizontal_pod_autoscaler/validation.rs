//! Validation of a `HorizontalPodAutoscaler`, in upstream's order and words.

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, CrossVersionObjectReference, ExternalMetricSource, HPAScalingPolicy,
    HPAScalingRules, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget, ObjectMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::validation::{each, non_negative, required, resources};

const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
/// Longest period of a policy, in seconds.
const LONGEST_PERIOD: i32 = 1800;
/// Longest stabilization window, in seconds.
const LONGEST_WINDOW: i32 = 3600;

/// Validates the spec.
pub(super) fn validate(spec: &HorizontalPodAutoscalerSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let (fewest, most) = (spec.min_replicas, spec.max_replicas);
    if let Some(fewest) = fewest.filter(|fewest| *fewest < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(Invalid::value("spec.minReplicas", fewest, detail));
    }
    if most == 0 {
        errors.push(Invalid::required("spec.maxReplicas", "must be set and greater than 0"));
    } else if most < 0 {
        let detail = "must be greater than or equal to 1";
        errors.push(Invalid::value("spec.maxReplicas", most, detail));
    }
    if fewest.is_some_and(|fewest| most < fewest) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(Invalid::value("spec.maxReplicas", most, detail));
    }
    // Of all scale targets only `ReplicationController` is in the core group.
    let groupless = spec.scale_target_ref.kind == "ReplicationController";
    reference(&mut errors, &spec.scale_target_ref, "spec.scaleTargetRef", groupless);
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    for (index, own) in metrics.iter().enumerate() {
        metric(&mut errors, own, &format!("spec.metrics[{index}]"));
    }
    let outside = |own: &MetricSpec| matches!(own.type_.as_str(), "Object" | "External");
    if fewest == Some(0) && !metrics.iter().any(outside) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(Invalid::forbidden("spec.metrics", detail));
    }
    if let Some(behavior) = &spec.behavior {
        rules(&mut errors, behavior.scale_up.as_ref(), "spec.behavior.scaleUp");
        rules(&mut errors, behavior.scale_down.as_ref(), "spec.behavior.scaleDown");
    }
    errors
}

/// Validates the replica counts of the status.
pub(super) fn validate_status(current: i32, desired: i32) -> Vec<Invalid> {
    let mut errors = Vec::new();
    non_negative(&mut errors, "status.currentReplicas", current.into());
    non_negative(&mut errors, "status.desiredReplicas", desired.into());
    errors
}

fn reference(errors: &mut Vec<Invalid>, own: &CrossVersionObjectReference, path: &str, groupless: bool) {
    for (name, value) in [("kind", &own.kind), ("name", &own.name)] {
        let field = format!("{path}.{name}");
        if required(errors, &field, Some(value)) {
            each(errors, &field, value, names::path_segment(value, false));
        }
    }
    let version = own.api_version.as_deref().unwrap_or_default();
    let detail = match version.matches('/').count() {
        0 if !groupless => "apiVersion must specify API group".to_owned(),
        1 if !groupless && version.starts_with('/') => "apiVersion must specify API group".to_owned(),
        0 | 1 => return,
        _ => format!("unexpected GroupVersion string: {version}"),
    };
    errors.push(Invalid::value(format!("{path}.apiVersion"), version, detail));
}

/// Validates that a metric has the one source of its type. Of several only the first is validated.
fn metric(errors: &mut Vec<Invalid>, own: &MetricSpec, path: &str) {
    let kind = own.type_.as_str();
    let field = format!("{path}.type");
    if kind.is_empty() {
        errors.push(Invalid::required(field.as_str(), "must specify a metric source type"));
    }
    if !SOURCES.contains(&kind) {
        errors.push(Invalid::not_supported(field, kind, &SOURCES));
    }
    let sources = [
        ("Object", "object", own.object.is_some()),
        ("External", "external", own.external.is_some()),
        ("Pods", "pods", own.pods.is_some()),
        ("Resource", "resource", own.resource.is_some()),
        (
            "ContainerResource",
            "containerResource",
            own.container_resource.is_some(),
        ),
    ];
    let mut present: Vec<&str> = Vec::new();
    for (_, source, _) in sources.into_iter().filter(|(_, _, there)| *there) {
        if present.is_empty() {
            look_into(errors, own, source, &format!("{path}.{source}"));
        }
        present.push(source);
    }
    let wanted = sources.into_iter().find(|(name, _, _)| *name == kind);
    if let Some((_, source, false)) = wanted {
        let detail = "must populate information for the given metric source";
        errors.push(Invalid::required(format!("{path}.{source}"), detail));
    }
    if present.len() > 1 {
        let wanted = wanted.map(|(_, source, _)| source);
        for source in present.into_iter().filter(|source| Some(*source) != wanted) {
            let detail = "must populate the given metric source only";
            errors.push(Invalid::forbidden(format!("{path}.{source}"), detail));
        }
    }
}

fn look_into(errors: &mut Vec<Invalid>, own: &MetricSpec, source: &str, path: &str) {
    if let (Some(own), "object") = (&own.object, source) {
        of_object(errors, own, path);
    } else if let (Some(own), "external") = (&own.external, source) {
        of_elsewhere(errors, own, path);
    } else if let (Some(own), "pods") = (&own.pods, source) {
        identifier(errors, &own.metric.name, path);
        target(errors, &own.target, path);
        if own.target.average_value.is_none() {
            let detail = "must specify a positive target averageValue";
            errors.push(Invalid::required(format!("{path}.target.averageValue"), detail));
        }
    } else if let (Some(own), "resource") = (&own.resource, source) {
        resource_name(errors, &own.name, path);
        share(errors, &own.target, path);
    } else if let (Some(own), "containerResource") = (&own.container_resource, source) {
        of_container(errors, own, path);
    }
}

fn of_object(errors: &mut Vec<Invalid>, own: &ObjectMetricSource, path: &str) {
    reference(errors, &own.described_object, &format!("{path}.describedObject"), true);
    identifier(errors, &own.metric.name, path);
    target(errors, &own.target, path);
    if own.target.value.is_none() && own.target.average_value.is_none() {
        let detail = "must set either a target value or averageValue";
        errors.push(Invalid::required(format!("{path}.target.averageValue"), detail));
    }
}

fn of_elsewhere(errors: &mut Vec<Invalid>, own: &ExternalMetricSource, path: &str) {
    identifier(errors, &own.metric.name, path);
    target(errors, &own.target, path);
    match (&own.target.value, &own.target.average_value) {
        (None, None) => {
            let detail = "must set either a target value for metric or a per-pod target";
            errors.push(Invalid::required(format!("{path}.target.averageValue"), detail));
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.push(Invalid::forbidden(format!("{path}.target.value"), detail));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
}

fn of_container(errors: &mut Vec<Invalid>, own: &ContainerResourceMetricSource, path: &str) {
    if resource_name(errors, &own.name, path) {
        resources::container_resource_name(errors, &own.name, &format!("{path}.name"));
    }
    let field = format!("{path}.container");
    if own.container.is_empty() {
        errors.push(Invalid::required(field, "must specify a container"));
    } else {
        each(errors, &field, &own.container, names::dns1123_label(&own.container));
    }
    share(errors, &own.target, path);
}

/// Checks that a resource is named; returns true if it is.
fn resource_name(errors: &mut Vec<Invalid>, name: &str, path: &str) -> bool {
    if name.is_empty() {
        let detail = "must specify a resource name";
        errors.push(Invalid::required(format!("{path}.name"), detail));
    }
    !name.is_empty()
}

fn identifier(errors: &mut Vec<Invalid>, name: &str, path: &str) {
    let field = format!("{path}.metric.name");
    if name.is_empty() {
        errors.push(Invalid::required(field, "must specify a metric name"));
    } else {
        each(errors, &field, name, names::path_segment(name, false));
    }
}

/// Validates the target of a resource metric: an average value, or a utilization in percent of the
/// request.
fn share(errors: &mut Vec<Invalid>, own: &MetricTarget, path: &str) {
    target(errors, own, path);
    match (own.average_utilization, &own.average_value) {
        (None, None) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.push(Invalid::required(format!("{path}.target.averageUtilization"), detail));
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.push(Invalid::forbidden(format!("{path}.target.averageValue"), detail));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
}

fn target(errors: &mut Vec<Invalid>, own: &MetricTarget, path: &str) {
    let path = format!("{path}.target");
    let (kind, field) = (own.type_.as_str(), format!("{path}.type"));
    if kind.is_empty() {
        errors.push(Invalid::required(field.as_str(), "must specify a metric target type"));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(Invalid::value(field, kind, detail));
    }
    let amount = |amount: &Text| Quantity::of(amount);
    for (name, value) in [("value", &own.value), ("averageValue", &own.average_value)] {
        if let Some(text) = value
            .as_ref()
            .filter(|text| amount(text).is_zero() || amount(text).is_negative())
        {
            errors.push(Invalid::value(format!("{path}.{name}"), &text.0, "must be positive"));
        }
    }
    if let Some(percent) = own.average_utilization.filter(|percent| *percent < 1) {
        let detail = "must be greater than 0";
        errors.push(Invalid::value(format!("{path}.averageUtilization"), percent, detail));
    }
}

fn rules(errors: &mut Vec<Invalid>, own: Option<&HPAScalingRules>, path: &str) {
    let Some(own) = own else { return };
    if let Some(window) = own.stabilization_window_seconds {
        let detail = if window < 0 {
            Some("must be greater than or equal to zero".to_owned())
        } else {
            (window > LONGEST_WINDOW).then(|| format!("must be less than or equal to {LONGEST_WINDOW}"))
        };
        let field = format!("{path}.stabilizationWindowSeconds");
        errors.extend(detail.map(|detail| Invalid::value(field, window, detail)));
    }
    let choices = ["Disabled", "Max", "Min"];
    if let Some(choice) = own.select_policy.as_deref().filter(|choice| !choices.contains(choice)) {
        errors.push(Invalid::not_supported(format!("{path}.selectPolicy"), choice, &choices));
    }
    let policies = own.policies.as_deref().unwrap_or_default();
    let path_of_policies = format!("{path}.policies");
    if policies.is_empty() {
        let detail = "must specify at least one Policy";
        errors.push(Invalid::required(path_of_policies.as_str(), detail));
    }
    for (index, own) in policies.iter().enumerate() {
        policy(errors, own, &format!("{path_of_policies}[{index}]"));
    }
    let tolerance = own.tolerance.as_ref();
    if let Some(text) = tolerance.filter(|text| Quantity::of(text).is_negative()) {
        let detail = "must be greater than or equal to 0";
        errors.push(Invalid::value(format!("{path}.tolerance"), &text.0, detail));
    }
}

fn policy(errors: &mut Vec<Invalid>, own: &HPAScalingPolicy, path: &str) {
    let kinds = ["Percent", "Pods"];
    if !kinds.contains(&own.type_.as_str()) {
        errors.push(Invalid::not_supported(format!("{path}.type"), &own.type_, &kinds));
    }
    for (name, value) in [("value", own.value), ("periodSeconds", own.period_seconds)] {
        if value <= 0 {
            let detail = "must be greater than zero";
            errors.push(Invalid::value(format!("{path}.{name}"), value, detail));
        }
    }
    if own.period_seconds > LONGEST_PERIOD {
        let detail = format!("must be less than or equal to {LONGEST_PERIOD}");
        errors.push(Invalid::value(
            format!("{path}.periodSeconds"),
            own.period_seconds,
            detail,
        ));
    }
}
