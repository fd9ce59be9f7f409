//! Statuses that are rejected.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{texts, with};
use crate::rules::status_refused;

/// Validation errors of a status update.
fn changed(group: &str, plural: &str, old: &Value, new: &Value) -> Vec<String> {
    let row = find(group, "v1", plural).unwrap();
    let (old, mut new) = (with(row, old), with(row, new));
    row.prepare_status(new.as_mut(), old.as_ref());
    texts(&row.validate_status(new.as_ref(), old.as_ref(), &mut Vec::new()))
}

#[test]
fn namespaces_are_in_the_phase_that_they_are_in() {
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    for (text, expected) in [("Foo", "\"Foo\""), ("Terminating", "\"Terminating\"")] {
        let wrong =
            format!("status.Phase: Invalid value: {expected}: may only be 'Active' if `deletionTimestamp` is empty");
        status_refused("", "namespaces", &phase(text), &[&wrong]);
    }
    status_refused("", "namespaces", &phase("Active"), &[]);
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Active"}});
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Terminating"}});
    assert!(changed("", "namespaces", &gone, &gone).is_empty());
    assert_eq!(
        changed("", "namespaces", &gone, &deleted),
        ["status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"]
    );
}

#[test]
fn pods_have_addresses_and_conditions_that_there_can_be() {
    let name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    status_refused(
        "",
        "pods",
        &json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "a b", "status": "True"}],
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
            "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "300.0.0.1"}],
            "nominatedNodeName": "A_",
            "observedGeneration": -1,
            "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}],
        }}),
        &[
            &format!("status.conditions[1].Type: Invalid value: \"a b\": {name}"),
            "status.nominatedNodeName: Invalid value: \"A_\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
            "status.resourceClaimStatuses[0].name: Invalid value: \"a\": must match the name of an entry in `spec.resourceClaims`",
            "status.podIPs: Invalid value: [{\"IP\":\"10.0.0.1\"},{\"IP\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
            "status.hostIPs[0].ip: Invalid value: \"10.0.0.1\": must be equal to `hostIP`",
            "status.hostIPs[2]: Invalid value: \"300.0.0.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ],
    );
    let bound = |node: &str| json!({"spec": {"nodeName": "n"}, "status": {"nominatedNodeName": node}});
    let wrong = "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node";
    assert_eq!(changed("", "pods", &bound(""), &bound("m")), [wrong]);
    let both = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
    status_refused("", "pods", &both, &[]);
}

#[test]
fn containers_that_have_ended_for_good_stay_so() {
    let status = |state: Value| {
        json!([{"name": "nginx", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": state}])
    };
    let rules = |action: &str| {
        let codes = json!({"operator": "In", "values": [7]});
        json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": action, "exitCodes": codes}]})
    };
    let (plain, never, always) = (
        json!({}),
        json!({"restartPolicy": "Never"}),
        json!({"restartPolicy": "Always"}),
    );
    let (again, all) = (rules("Restart"), rules("RestartAllContainers"));
    for (policy, own, code, refused) in [
        ("Never", &plain, 0, true),
        ("Never", &plain, 1, true),
        ("OnFailure", &plain, 0, true),
        ("OnFailure", &plain, 1, false),
        ("Always", &plain, 0, false),
        ("Always", &never, 1, true),
        ("Never", &always, 0, false),
        ("Never", &again, 7, false),
        ("Never", &again, 8, true),
        ("Never", &all, 8, false),
    ] {
        for (list, statuses) in [
            ("containers", "containerStatuses"),
            ("initContainers", "initContainerStatuses"),
        ] {
            let mut container = json!({"name": "nginx", "image": "i"});
            for (key, value) in own.as_object().unwrap() {
                container[key] = value.clone();
            }
            let mut spec = json!({"restartPolicy": policy, "containers": [{"name": "other", "image": "i"}]});
            spec[list] = json!([container]);
            let pod = |state: Value| json!({"spec": spec, "status": {statuses: status(state)}});
            let ended = pod(json!({"terminated": {"exitCode": code}}));
            let wrong =
                format!("status.{statuses}[0].state: Forbidden: may not be transitioned to non-terminated state");
            let expected: Vec<String> = refused.then_some(wrong).into_iter().collect();
            for state in [json!({"running": {}}), json!({"waiting": {}}), json!(null)] {
                let what = format!("{policy} {own} {code} {list} {state}");
                assert_eq!(changed("", "pods", &ended, &pod(state)), expected, "{what}");
            }
            let other = pod(json!({"terminated": {"exitCode": 9}}));
            assert!(changed("", "pods", &ended, &other).is_empty());
        }
    }
    // Ephemeral containers never restart.
    let added = |state: Value| json!({"status": {"ephemeralContainerStatuses": status(state)}});
    let (ended, runs) = (
        added(json!({"terminated": {"exitCode": 1}})),
        added(json!({"running": {}})),
    );
    let wrong =
        "status.ephemeralContainerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state";
    assert_eq!(changed("", "pods", &ended, &runs), [wrong]);
    // A merge of a state into another one leaves both.
    let both = added(json!({"running": {}, "waiting": {}}));
    assert!(changed("", "pods", &runs, &both).is_empty());
}

#[test]
fn sets_count_their_pods() {
    let negative = "must be greater than or equal to 0";
    let of_all = "cannot be greater than status.replicas";
    status_refused(
        "apps",
        "statefulsets",
        &json!({"status": {"replicas": 1, "readyReplicas": 0, "currentReplicas": 2, "updatedReplicas": -1,
            "availableReplicas": 1, "observedGeneration": -1}}),
        &[
            &format!("status.updatedReplicas: Invalid value: -1: {negative}"),
            &format!("status.observedGeneration: Invalid value: -1: {negative}"),
            &format!("status.currentReplicas: Invalid value: 2: {of_all}"),
            "status.availableReplicas: Invalid value: 1: cannot be greater than status.readyReplicas",
        ],
    );
    status_refused(
        "apps",
        "daemonsets",
        &json!({"status": {"currentNumberScheduled": -1, "numberMisscheduled": 0, "desiredNumberScheduled": 0,
            "numberReady": 0, "numberUnavailable": -2}}),
        &[
            &format!("status.currentNumberScheduled: Invalid value: -1: {negative}"),
            &format!("status.numberUnavailable: Invalid value: -2: {negative}"),
        ],
    );
    for (group, plural) in [("apps", "replicasets"), ("", "replicationcontrollers")] {
        status_refused(
            group,
            plural,
            &json!({"status": {"replicas": 1, "fullyLabeledReplicas": 2, "readyReplicas": 0, "availableReplicas": 1,
                "observedGeneration": -1}}),
            &[
                &format!("status.observedGeneration: Invalid value: -1: {negative}"),
                &format!("status.fullyLabeledReplicas: Invalid value: 2: {of_all}"),
                "status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas",
            ],
        );
    }
    for plural in ["replicasets", "deployments"] {
        let wrong = format!("status.terminatingReplicas: Invalid value: -1: {negative}");
        let terminating = |count: i32| json!({"status": {"replicas": 0, "terminatingReplicas": count}});
        status_refused("apps", plural, &terminating(-1), &[&wrong]);
        status_refused("apps", plural, &terminating(2), &[]);
    }
    for plural in ["statefulsets", "daemonsets"] {
        let count = |count: i32| json!({"status": {"collisionCount": count}});
        assert_eq!(
            changed("apps", plural, &count(4), &count(1)),
            ["status.collisionCount: Invalid value: 1: cannot be decremented"],
            "{plural}"
        );
    }
}

#[test]
fn jobs_end_once_and_whole() {
    let time = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let job = |status: Value| changed("batch", "jobs", &json!({"status": null}), &json!({ "status": status }));
    let whole = json!({"startTime": time, "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
    assert_eq!(job(whole.clone()), Vec::<String>::new());
    assert_eq!(
        job(json!({"active": -1, "ready": 0, "uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}})),
        [
            "status.active: Invalid value: -1: must be greater than or equal to 0",
            "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
            "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
            "status.ready: Invalid value: 0: cannot set more ready pods than active",
        ]
    );
    assert_eq!(
        job(json!({"active": 1, "conditions": [condition("Complete"), condition("Failed")]})),
        [
            "status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
            "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            "status.completionTime: Required value: completionTime is required for Complete jobs",
            "status.active: Invalid value: 1: active>0 is invalid for finished job",
            "status.startTime: Required value: startTime is required for finished job",
        ]
    );
    assert_eq!(
        job(json!({"startTime": "2026-01-01T00:00:01Z", "completionTime": time, "failedIndexes": "1"})),
        [
            "status.completionTime: Invalid value: \"2026-01-01T00:00:00Z\": cannot set completionTime when there is no Complete=True condition",
            "status.completionTime: Invalid value: \"2026-01-01T00:00:00Z\": must be equal to or after `startTime`",
            "status.failedIndexes: Invalid value: \"1\": cannot set non-null failedIndexes when backoffLimitPerIndex is null",
        ]
    );
    let begun = json!({"status": {"startTime": time, "succeeded": 2}});
    assert_eq!(
        changed(
            "batch",
            "jobs",
            &begun,
            &json!({"status": {"startTime": null, "succeeded": 1}})
        ),
        [
            "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
            "status.startTime: Invalid value: null: field is immutable for unsuspended job once set",
        ]
    );
    let ended = json!({ "status": whole });
    let after = changed(
        "batch",
        "jobs",
        &ended,
        &json!({"status": {"startTime": time, "succeeded": 1}}),
    );
    assert_eq!(
        after,
        [
            "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
            "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
        ]
    );
}

#[test]
fn claims_expand_their_storage() {
    let status = json!({"status": {
        "capacity": {"storage": "-1"},
        "allocatedResourceStatuses": {"cpu": "NodeResizePending", "storage": "ControllerResizeFailed"},
        "allocatedResources": {"cpu": "1", "storage": "-1"},
    }});
    status_refused(
        "",
        "persistentvolumeclaims",
        &status,
        &[
            "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
            "status.allocatedResourceStatuses: Unsupported value: \"cpu\": supported values: \"storage\"",
            "status.allocatedResourceStatuses: Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"",
            "status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"",
            "status.allocatedResources[storage]: Invalid value: -1: must be a valid resource quantity",
        ],
    );
    let expanding = json!({"status": {
        "allocatedResourceStatuses": {"example.com/iops": "NodeResizePending", "storage": "NodeResizeInfeasible"},
        "allocatedResources": {"example.com/iops": "1", "storage": "2Gi"},
    }});
    status_refused("", "persistentvolumeclaims", &expanding, &[]);
}

#[test]
fn devices_that_a_claim_gave_back_have_no_status() {
    let device = json!({"driver": "a.b", "pool": "pool", "device": "gpu-0"});
    let held = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": "a.b", "pool": "pool",
        "device": "gpu-0"}]}}, "devices": [device]});
    let freed = json!({"status": {"devices": [device]}});
    let of = |old: &Value| changed("resource.k8s.io", "resourceclaims", old, &freed).len();
    assert_eq!((of(&json!({ "status": held })), of(&json!({"status": {}}))), (0, 1));
}
