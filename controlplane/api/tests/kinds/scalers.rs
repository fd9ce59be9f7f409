//! Validation errors of autoscalers, in upstream's words.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{texts, with};

fn refused(spec: &Value, expected: &[&str]) {
    let row = find("autoscaling", "v2", "horizontalpodautoscalers").unwrap();
    let object = with(row, &json!({ "spec": spec }));
    assert_eq!(texts(&row.validate(object.as_ref())), expected, "{spec}");
}

#[test]
fn an_autoscaler_names_what_it_scales() {
    let bad = "may not contain";
    refused(
        &json!({"scaleTargetRef": {"apiVersion": null, "kind": "a%b", "name": "a/b"}, "minReplicas": 5, "maxReplicas": 4}),
        &[
            "spec.maxReplicas: Invalid value: 4: must be greater than or equal to `minReplicas`",
            &format!("spec.scaleTargetRef.kind: Invalid value: \"a%b\": {bad} '%'"),
            &format!("spec.scaleTargetRef.name: Invalid value: \"a/b\": {bad} '/'"),
            "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
        ],
    );
    refused(
        &json!({"scaleTargetRef": {"apiVersion": "v1"}, "minReplicas": 0, "metrics": []}),
        &[
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
            "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group",
            "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
        ],
    );
    for (most, expected) in [
        (0, "Required value: must be set and greater than 0"),
        (-1, "Invalid value: -1: must be greater than or equal to 1"),
    ] {
        refused(
            &json!({ "maxReplicas": most }),
            &[
                &format!("spec.maxReplicas: {expected}"),
                &format!("spec.maxReplicas: Invalid value: {most}: must be greater than or equal to `minReplicas`"),
            ],
        );
    }
    refused(
        &json!({"scaleTargetRef": {"apiVersion": "a/b/c"}}),
        &["spec.scaleTargetRef.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"],
    );
    refused(
        &json!({"scaleTargetRef": {"apiVersion": "v1", "kind": "ReplicationController"}}),
        &[],
    );
}

#[test]
fn an_update_may_leave_a_version_without_a_group() {
    let row = find("autoscaling", "v2", "horizontalpodautoscalers").unwrap();
    let scaler = |version: &str, most: i32| {
        let spec = json!({"scaleTargetRef": {"apiVersion": version}, "maxReplicas": most});
        with(row, &json!({ "spec": spec }))
    };
    for (version, expected) in [("v1", 0), ("a/b/c", 1)] {
        let (old, new) = (scaler("v1", 5), scaler(version, 6));
        let errors = row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new());
        assert_eq!(errors.len(), expected, "{version} {errors:?}");
    }
}

fn metric(metric: &Value, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|text| format!("spec.metrics[0]{text}")).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    refused(&json!({ "metrics": [metric] }), &expected);
}

#[test]
fn a_metric_has_the_one_source_that_its_type_says() {
    let pods = json!({"metric": {"name": "a"}, "target": {"type": "AverageValue", "averageValue": "1"}});
    let supported = "supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"";
    metric(
        &json!({"type": ""}),
        &[
            ".type: Required value: must specify a metric source type",
            &format!(".type: Unsupported value: \"\": {supported}"),
        ],
    );
    metric(
        &json!({"type": "Resource", "pods": pods, "resource": {"name": "", "target": {"type": "Utilization"}}}),
        &[".pods: Forbidden: must populate the given metric source only"],
    );
    metric(
        &json!({"type": "Object", "pods": pods}),
        &[".object: Required value: must populate information for the given metric source"],
    );
}

#[test]
fn sources_of_metrics_are_complete() {
    let target = json!({"type": "X", "averageUtilization": 0, "averageValue": "-1"});
    metric(
        &json!({"type": "Resource", "resource": {"name": "", "target": target}}),
        &[
            ".resource.name: Required value: must specify a resource name",
            ".resource.target.type: Invalid value: \"X\": must be either Utilization, Value, or AverageValue",
            ".resource.target.averageValue: Invalid value: \"-1\": must be positive",
            ".resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
            ".resource.target.averageValue: Forbidden: may not set both a target raw value and a target utilization",
        ],
    );
    metric(
        &json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "", "target": {"type": ""}}}),
        &[
            ".containerResource.container: Required value: must specify a container",
            ".containerResource.target.type: Required value: must specify a metric target type",
            ".containerResource.target.type: Invalid value: \"\": must be either Utilization, Value, or AverageValue",
            ".containerResource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
        ],
    );
    metric(
        &json!({"type": "Pods", "pods": {"metric": {"name": "a/b"}, "target": {"type": "Value", "value": "0"}}}),
        &[
            ".pods.metric.name: Invalid value: \"a/b\": may not contain '/'",
            ".pods.target.value: Invalid value: \"0\": must be positive",
            ".pods.target.averageValue: Required value: must specify a positive target averageValue",
        ],
    );
    metric(
        &json!({"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": ""},
            "metric": {"name": ""}, "target": {"type": "Value"}}}),
        &[
            ".object.describedObject.name: Required value",
            ".object.metric.name: Required value: must specify a metric name",
            ".object.target.averageValue: Required value: must set either a target value or averageValue",
        ],
    );
    let both = json!({"type": "Value", "value": "1", "averageValue": "1"});
    metric(
        &json!({"type": "External", "external": {"metric": {"name": "a"}, "target": both}}),
        &[".external.target.value: Forbidden: may not set both a target value for metric and a per-pod target"],
    );
}

#[test]
fn behavior_is_bounded() {
    let policy = json!({"type": "Q", "value": 0, "periodSeconds": 5000});
    refused(
        &json!({"behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 3601, "policies": [], "tolerance": "-1"},
            "scaleDown": {"stabilizationWindowSeconds": -1, "selectPolicy": "X", "policies": [policy]},
        }}),
        &[
            "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600",
            "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
            "spec.behavior.scaleUp.tolerance: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.behavior.scaleDown.stabilizationWindowSeconds: Invalid value: -1: must be greater than or equal to zero",
            "spec.behavior.scaleDown.selectPolicy: Unsupported value: \"X\": supported values: \"Disabled\", \"Max\", \"Min\"",
            "spec.behavior.scaleDown.policies[0].type: Unsupported value: \"Q\": supported values: \"Percent\", \"Pods\"",
            "spec.behavior.scaleDown.policies[0].value: Invalid value: 0: must be greater than zero",
            "spec.behavior.scaleDown.policies[0].periodSeconds: Invalid value: 5000: must be less than or equal to 1800",
        ],
    );
}
