//! Paths, messages and their order, where upstream's are unexpected.

use serde_json::{Value, json};

use crate::refused::{pod_refused, refused};

fn spec_refused(spec: &Value, expected: &[&str]) {
    refused("", "pods", &json!({ "spec": spec }), expected);
}

/// Upstream sorts the values that it keeps in sets, and lists the others as in its source.
#[test]
fn what_is_supported_is_listed_in_upstreams_order() {
    let taint = json!({"key": "a", "effect": "Never"});
    for (group, plural, patch, expected) in [
        (
            "",
            "pods",
            json!({"spec": {"restartPolicy": "Maybe"}}),
            r#"spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never""#,
        ),
        (
            "",
            "pods",
            json!({"spec": {"dnsPolicy": "Maybe"}}),
            r#"spec.dnsPolicy: Unsupported value: "Maybe": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None""#,
        ),
        (
            "",
            "pods",
            json!({"spec": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "Never"}]}}),
            r#"spec.tolerations[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
        ),
        (
            "",
            "nodes",
            json!({"spec": {"taints": [taint]}}),
            r#"metadata.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
        ),
    ] {
        refused(group, plural, &patch, &[expected]);
    }
}

#[test]
fn so_it_is_for_kinds_other_than_pods() {
    let metadata = json!({"name": "a"});
    for (group, plural, patch, expected) in [
        (
            "",
            "services",
            json!({"spec": {"trafficDistribution": "Far"}}),
            r#"spec.trafficDistribution: Unsupported value: "Far": supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#,
        ),
        (
            "apps",
            "statefulsets",
            json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Keep"}}}),
            r#"spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: "Keep": supported values: "Retain", "Delete""#,
        ),
        (
            "batch",
            "jobs",
            json!({"spec": {"completionMode": "Some"}}),
            r#"spec.completionMode: Unsupported value: "Some": supported values: "NonIndexed", "Indexed""#,
        ),
        (
            "scheduling.k8s.io",
            "priorityclasses",
            json!({"preemptionPolicy": "Some"}),
            r#"preemptionPolicy: Unsupported value: "Some": supported values: "PreemptLowerPriority", "Never""#,
        ),
        (
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({"roleRef": {"kind": "Some"}}),
            r#"roleRef.kind: Unsupported value: "Some": supported values: "Role", "ClusterRole""#,
        ),
        (
            "storage.k8s.io",
            "csidrivers",
            json!({"metadata": metadata, "spec": {"volumeLifecycleModes": ["Some"]}}),
            r#"spec.volumeLifecycleModes: Unsupported value: "Some": supported values: "Persistent", "Ephemeral""#,
        ),
    ] {
        refused(group, plural, &patch, &[expected]);
    }
}

#[test]
fn so_it_is_for_containers() {
    pod_refused(
        &json!({"terminationMessagePolicy": "Some"}),
        &[
            r#"spec.containers[0].terminationMessagePolicy: Unsupported value: "Some": supported values: "File", "FallbackToLogsOnError""#,
        ],
    );
    // A set, so sorted.
    pod_refused(
        &json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.disk"}}}]}),
        &[
            r#"spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.disk": supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory""#,
        ],
    );
}

#[test]
fn resolvers() {
    spec_refused(
        &json!({"dnsPolicy": "None"}),
        &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    );
    // Such a configuration has no other errors.
    spec_refused(
        &json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["A"]}}),
        &[
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
        ],
    );
    spec_refused(
        &json!({"dnsConfig": {"options": [{"value": "2"}, {"name": "ndots"}, {"name": ""}]}}),
        &[
            "spec.dnsConfig.options[0]: Required value: must not be empty",
            "spec.dnsConfig.options[2]: Required value: must not be empty",
        ],
    );
    let many: Vec<String> = (10..30).map(|number| format!("{number}{}", "a".repeat(101))).collect();
    let value = serde_json::to_string(&many).unwrap();
    spec_refused(
        &json!({"dnsConfig": {"searches": many}}),
        &[&format!(
            "spec.dnsConfig.searches: Invalid value: {value}: must not have more than 2048 characters (including spaces) in the search list"
        )],
    );
}

#[test]
fn domains_that_are_searched() {
    let right = json!([".", "a.b.", "_tcp.a_b.c", "_a", "a__b"]);
    spec_refused(&json!({"dnsConfig": {"searches": right}}), &[]);
    let detail = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
    for (search, shown) in [
        ("A.", "A"),
        ("__a", "__a"),
        ("a_", "a_"),
        ("a._.b", "a._.b"),
        ("_-a", "_-a"),
        ("a..", "a."),
        ("", ""),
    ] {
        let expected = format!("spec.dnsConfig.searches[0]: Invalid value: {shown:?}: {detail}");
        spec_refused(&json!({"dnsConfig": {"searches": [search]}}), &[&expected]);
    }
}

/// Missing host ports are defaulted with host networking; init containers are not checked.
#[test]
fn ports_of_the_node() {
    let container = |ports: Value| json!([{"name": "a", "image": "nginx", "ports": ports}]);
    let init = json!([{"name": "b", "image": "nginx", "ports": [{"containerPort": 80, "hostPort": 81}]}]);
    let spec = json!({"hostNetwork": true, "initContainers": init,
        "containers": container(json!([{"containerPort": 79}, {"containerPort": 80, "hostPort": 81}]))});
    let detail = "must match `containerPort` when `hostNetwork` is true";
    spec_refused(
        &spec,
        &[&format!(
            "spec.containers[0].ports[1].hostPort: Invalid value: 81: {detail}"
        )],
    );
    let template = json!({"spec": {"template": {"spec": spec}}});
    refused(
        "apps",
        "deployments",
        &template,
        &[&format!(
            "spec.template.spec.containers[0].ports[1].hostPort: Invalid value: 81: {detail}"
        )],
    );
}

#[test]
fn probes_are_told_of_in_their_order() {
    let path = "spec.containers[0]";
    let exec = json!({"command": ["a"]});
    pod_refused(
        &json!({
            "startupProbe": {"successThreshold": 2, "exec": exec},
            "readinessProbe": {"exec": exec, "terminationGracePeriodSeconds": 0},
            "livenessProbe": {"exec": exec, "successThreshold": 3, "terminationGracePeriodSeconds": -1},
            "imagePullPolicy": "X",
            "terminationMessagePolicy": "Y",
        }),
        &[
            &format!(
                r#"{path}.terminationMessagePolicy: Unsupported value: "Y": supported values: "File", "FallbackToLogsOnError""#
            ),
            &format!(
                r#"{path}.imagePullPolicy: Unsupported value: "X": supported values: "Always", "IfNotPresent", "Never""#
            ),
            &format!("{path}.livenessProbe.terminationGracePeriodSeconds: Invalid value: -1: must be greater than 0"),
            &format!("{path}.livenessProbe.successThreshold: Invalid value: 3: must be 1"),
            &format!("{path}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"),
            &format!(
                "{path}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 0: must not be set for readinessProbes"
            ),
            &format!("{path}.startupProbe.successThreshold: Invalid value: 2: must be 1"),
        ],
    );
}
