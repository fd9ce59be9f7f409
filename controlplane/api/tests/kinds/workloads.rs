//! Workloads that are refused, in upstream's words.

use serde_json::json;

use crate::refused::{refused, update_refused};

#[test]
fn selectors_of_workloads() {
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": null}}),
        &[
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: {\"app\":\"nginx\"}: `selector` does not match template `labels`",
        ],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": []}}}),
        &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}}),
        &[
            "spec.selector.matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator",
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"nginx\"},\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Like\"}]}: invalid label selector",
        ],
    );
    refused(
        "apps",
        "daemonsets",
        &json!({"spec": {"selector": null, "template": {"metadata": {"labels": null}}}}),
        &["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    );
    refused(
        "apps",
        "replicasets",
        &json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": []}, "template": {"spec": {"activeDeadlineSeconds": 5}}}}),
        &[
            "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        ],
    );
}

#[test]
fn deployments() {
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"replicas": -1}}),
        &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
        &[
            "spec.template.metadata.labels: Invalid value: {\"app\":\"nginx\"}: `selector` does not match template `labels`",
        ],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}}),
        &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"strategy": {"type": "Sideways"}}}),
        &["spec.strategy.type: Unsupported value: \"Sideways\": supported values: \"Recreate\", \"RollingUpdate\""],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}}),
        &[
            "spec.template.spec.containers: Required value",
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ],
    );
    update_refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": {"app": null, "a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}}}),
        &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable"],
    );
}
