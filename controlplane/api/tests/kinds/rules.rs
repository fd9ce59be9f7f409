//! Validation of further kinds: one change of a fixture and its errors.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, texts, update_refused, with};

type Case = (&'static str, &'static str, Value, &'static str);

#[test]
fn new_objects() {
    let cases: Vec<Case> = vec![
        (
            "",
            "services",
            json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30080}]}}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            "batch",
            "jobs",
            json!({"spec": {"template": {"spec": {"restartPolicy": null}}, "podFailurePolicy": null}}),
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ),
        (
            "batch",
            "jobs",
            json!({"spec": {"parallelism": -1}}),
            "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "batch",
            "cronjobs",
            json!({"spec": {"schedule": "* * * *"}}),
            "spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]",
        ),
        (
            "batch",
            "cronjobs",
            json!({"spec": {"concurrencyPolicy": "Never"}}),
            "spec.concurrencyPolicy: Unsupported value: \"Never\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ),
        (
            "apps",
            "daemonsets",
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
        ),
        (
            "apps",
            "daemonsets",
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "101%"}}}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
        ),
        (
            "apps",
            "daemonsets",
            json!({"spec": {"updateStrategy": {"type": "Sideways"}}}),
            "spec.updateStrategy: Unsupported value: {\"Type\":\"Sideways\",\"RollingUpdate\":null}: supported values: \"RollingUpdate\", \"OnDelete\"",
        ),
    ];
    for (group, plural, patch, expected) in cases {
        refused(group, plural, &patch, &[expected]);
    }
}

#[test]
fn new_objects_of_other_groups() {
    let cases: Vec<Case> = vec![
        (
            "apps",
            "statefulsets",
            json!({"spec": {"podManagementPolicy": "Random"}}),
            "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": null}}),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            "",
            "persistentvolumes",
            json!({"spec": {"hostPath": null}}),
            "spec: Required value: must specify a volume type",
        ),
        (
            "policy",
            "poddisruptionbudgets",
            json!({"spec": {"minAvailable": "150%"}}),
            "spec.minAvailable: Invalid value: \"150%\": must not be greater than 100%",
        ),
        (
            "rbac.authorization.k8s.io",
            "roles",
            json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
        ),
        (
            "rbac.authorization.k8s.io",
            "clusterrolebindings",
            json!({"roleRef": {"kind": "Role"}}),
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
        ),
        (
            "node.k8s.io",
            "runtimeclasses",
            json!({"handler": "run_sc"}),
            "handler: Invalid value: \"run_sc\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
    ];
    for (group, plural, patch, expected) in cases {
        refused(group, plural, &patch, &[expected]);
    }
}

#[test]
fn updates() {
    let cases: Vec<Case> = vec![
        (
            "apps",
            "statefulsets",
            json!({"spec": {"serviceName": "other"}}),
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"volumeName": "other"}}),
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n- volumeName: \"disk-1\"\n+ volumeName: \"other\"",
        ),
        (
            "",
            "persistentvolumes",
            json!({"spec": {"hostPath": {"path": "/other"}}}),
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n- hostPath: {\"path\":\"/data\",\"type\":\"\"}\n+ hostPath: {\"path\":\"/other\",\"type\":\"\"}",
        ),
        (
            "storage.k8s.io",
            "storageclasses",
            json!({"parameters": {"type": "ssd"}}),
            "parameters: Forbidden: updates to parameters are forbidden.",
        ),
        (
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({"roleRef": {"name": "other"}}),
            "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"other\"}: cannot change roleRef",
        ),
        (
            "networking.k8s.io",
            "servicecidrs",
            json!({"spec": {"cidrs": ["10.98.0.0/16"]}}),
            "spec.cidrs: Invalid value: [\"10.98.0.0/16\"]: field is immutable",
        ),
    ];
    for (group, plural, patch, expected) in cases {
        update_refused(group, plural, &patch, &[expected]);
    }
}

/// Validation errors of a status that replaces one without counts.
pub(crate) fn status_refused(group: &str, plural: &str, patch: &Value, expected: &[&str]) {
    let row = find(group, "v1", plural).unwrap();
    let mut old = with(row, &json!({}));
    row.prepare_create(old.as_mut());
    let mut new = with(row, patch);
    row.prepare_status(new.as_mut(), old.as_ref());
    assert_eq!(
        texts(&row.validate_status(new.as_ref(), old.as_ref(), &mut Vec::new())),
        expected,
        "{plural} {patch}"
    );
}

#[test]
fn conditions_of_statuses() {
    let time = "2026-01-01T00:00:00Z";
    let conditions = json!([
        {"type": "A", "status": "True", "reason": "Good:Better_", "lastTransitionTime": time},
        {"type": "A", "status": "true", "reason": "1", "lastTransitionTime": time, "observedGeneration": -1},
        {},
    ]);
    for (group, plural) in [
        ("policy", "poddisruptionbudgets"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ] {
        status_refused(
            group,
            plural,
            &json!({"status": {"conditions": conditions}}),
            &[
                "status.conditions[1].type: Duplicate value: \"A\"",
                "status.conditions[1].status: Unsupported value: \"true\": supported values: \"False\", \"True\", \"Unknown\"",
                "status.conditions[1].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
                "status.conditions[1].reason: Invalid value: \"1\": a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')",
                "status.conditions[2].type: Invalid value: \"\": name part must be non-empty",
                "status.conditions[2].type: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                "status.conditions[2].status: Unsupported value: \"\": supported values: \"False\", \"True\", \"Unknown\"",
                "status.conditions[2].lastTransitionTime: Required value",
                "status.conditions[2].reason: Required value",
            ],
        );
    }
}

#[test]
fn statuses() {
    let negative = "must be greater than or equal to 0";
    status_refused(
        "apps",
        "deployments",
        &json!({"status": {"observedGeneration": -3, "replicas": 2, "updatedReplicas": 7, "readyReplicas": 1,
            "availableReplicas": 2, "collisionCount": -1}}),
        &[
            &format!("status.observedGeneration: Invalid value: -3: {negative}"),
            &format!("status.collisionCount: Invalid value: -1: {negative}"),
            "status.updatedReplicas: Invalid value: 7: cannot be greater than status.replicas",
            "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
        ],
    );
    status_refused(
        "policy",
        "poddisruptionbudgets",
        &json!({"status": {"disruptionsAllowed": -1, "currentHealthy": -2, "desiredHealthy": 0, "expectedPods": 0}}),
        &[
            &format!("status.disruptionsAllowed: Invalid value: -1: {negative}"),
            &format!("status.currentHealthy: Invalid value: -2: {negative}"),
        ],
    );
    status_refused(
        "autoscaling",
        "horizontalpodautoscalers",
        &json!({"status": {"currentReplicas": -1, "desiredReplicas": 0}}),
        &[&format!("status.currentReplicas: Invalid value: -1: {negative}")],
    );
    let places = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    status_refused(
        "",
        "services",
        &json!({ "status": places }),
        &["status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"],
    );
}

#[test]
fn a_load_balancer_is_reached_at_places_that_there_can_be() {
    let row = find("", "v1", "services").unwrap();
    let place = |place: Value| {
        let patch = json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [place]}}});
        let service = with(row, &patch);
        texts(&row.validate_status(service.as_ref(), service.as_ref(), &mut Vec::new()))
    };
    let path = "status.loadBalancer.ingress[0]";
    assert!(place(json!({"ip": "192.0.2.1"})).is_empty());
    assert_eq!(
        place(json!({"ip": "300.1.1.1", "ipMode": "X"})),
        [
            format!(
                "{path}.ip: Invalid value: \"300.1.1.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            ),
            format!("{path}.ipMode: Unsupported value: \"X\": supported values: \"Proxy\", \"VIP\""),
        ]
    );
    assert_eq!(
        place(json!({"hostname": "10.0.0.1", "ipMode": "VIP"})),
        [
            format!("{path}.ipMode: Forbidden: may not be specified when `ip` is not set"),
            format!("{path}.hostname: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address"),
        ]
    );
    // A service that is no longer a load balancer loses its load balancer status.
    let old = with(
        row,
        &json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}),
    );
    let mut new = with(row, &json!({"spec": {"type": "ClusterIP"}}));
    row.prepare_update(new.as_mut(), old.as_ref());
    let json: Value = serde_json::from_slice(&new.to_json()).unwrap();
    assert_eq!(json["status"], json!({"loadBalancer": {}}));
}
