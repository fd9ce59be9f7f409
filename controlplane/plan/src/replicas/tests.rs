use expect_test::{Expect, expect};
use k8s_openapi::{api::apps::v1::ReplicaSet, jiff::Timestamp};
use serde_json::json;

use super::{Elder, Failure, Snapshot, plan};
use crate::{
    pod::Pod,
    step::{REPLICA_SETS, REPLICATION_CONTROLLERS},
};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "r", "generation": 1 },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "main" }] } },
        },
        "status": { "replicas": 0, "observedGeneration": 1 },
    }))
    .unwrap()
}

/// `name node phase ready`; a name that begins with `free` has no owner.
fn pod(text: &str) -> Pod {
    let words: Vec<&str> = text.split(' ').collect();
    let owner =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true }]);
    let deleted = if words.contains(&"deleted") {
        json!("2026-01-01T00:59:00Z")
    } else {
        json!(null)
    };
    let ready = if words.contains(&"ready") { "True" } else { "False" };
    let node = if words[1] == "-" { json!(null) } else { json!(words[1]) };
    serde_json::from_value(json!({
        "metadata": {
            "name": words[0], "namespace": "default", "uid": words[0], "labels": { "app": "web" },
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": deleted,
            "ownerReferences": if words[0].starts_with("free") { json!([]) } else { owner },
        },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": words[2], "conditions": [{
            "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    }))
    .unwrap()
}

fn check(replicas: i32, pods: &[&str], expected: &Expect) {
    let (set, pods): (_, Vec<Pod>) = (set(replicas), pods.iter().map(|text| pod(text)).collect());
    let pods: Vec<&Pod> = pods.iter().collect();
    let plan = plan(
        &Snapshot {
            resource: REPLICA_SETS,
            set: &set,
            pods: &pods,
            related: &pods,
            failure: None,
        },
        now(),
    );
    let mut lines: Vec<String> = plan.stages.iter().flatten().map(ToString::to_string).collect();
    lines.retain(|line| !line.contains("/status"));
    expected.assert_eq(&lines.join("\n"));
}

#[test]
fn makes_what_is_missing() {
    check(
        2,
        &["a n1 Running ready"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
    check(1, &["a n1 Running ready"], &expect![""]);
    check(
        1,
        &["a n1 Running ready deleted"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
    check(
        1,
        &["a n1 Failed"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
}

#[test]
fn gives_up_what_is_worth_least() {
    let gone = |pods: &[&str], expected: Expect| check(1, pods, &expected);
    gone(
        &["a n1 Running ready", "b - Pending"],
        expect!["delete Pod b (SuccessfulDelete: Deleted pod: {})"],
    );
    gone(
        &["a n1 Running ready", "b n1 Pending"],
        expect!["delete Pod b (SuccessfulDelete: Deleted pod: {})"],
    );
    gone(
        &["a n1 Running", "b n1 Running ready"],
        expect!["delete Pod a (SuccessfulDelete: Deleted pod: {})"],
    );
    check(
        2,
        &["a n1 Running ready", "b n2 Running ready", "c n2 Running ready"],
        &expect!["delete Pod b (SuccessfulDelete: Deleted pod: {})"],
    );
}

#[test]
fn adopts_before_it_makes() {
    check(1, &["free n1 Running ready"], &expect!["patch Pod free"]);
}

#[test]
fn a_refusal_is_reported_first_and_tried_once() {
    let set = set(3);
    let failure = Failure {
        reason: "Forbidden".to_owned(),
        message: "exceeded quota".to_owned(),
    };
    let plan = plan(
        &Snapshot {
            resource: REPLICA_SETS,
            set: &set,
            pods: &[],
            related: &[],
            failure: Some(&failure),
        },
        now(),
    );
    let expected = expect!["patch ReplicaSet web/status -> create Pod web- (SuccessfulCreate: Created pod: {})"];
    expected.assert_eq(&plan.to_string());
}

#[test]
fn while_a_crowd_starts_the_status_tells_now_and_then_who_is_ready() {
    let patience = |wanted: i32, ready: i32, recorded: i32| {
        let mut set = set(wanted);
        set.status.as_mut().unwrap().replicas = recorded;
        let pods = (0..recorded).map(|number| {
            pod(&format!(
                "p{number} n1 Running{}",
                if number < ready { " ready" } else { "" }
            ))
        });
        let pods: Vec<Pod> = pods.collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let snapshot = Snapshot {
            resource: REPLICA_SETS,
            set: &set,
            pods: &pods,
            related: &pods,
            failure: None,
        };
        let plan = plan(&snapshot, now());
        (plan.to_string(), plan.patience.is_some())
    };
    let told = |patient: bool| ("patch ReplicaSet web/status".to_owned(), patient);
    assert_eq!(patience(20, 1, 20), told(true));
    assert_eq!(patience(20, 11, 20), told(true));
    assert_eq!(patience(20, 12, 20), told(false), "few are missing");
    assert_eq!(patience(20, 20, 20), told(false));
    assert!(!patience(21, 1, 20).1, "there is more to do");
}

#[test]
fn replication_controllers_are_replica_sets_of_old() {
    let elder: Elder = serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "r", "generation": 1 },
        "spec": {
            "replicas": 2, "selector": { "app": "web" },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "main" }] } },
        },
        "status": { "replicas": 1, "fullyLabeledReplicas": 1, "observedGeneration": 1 },
    }))
    .unwrap();
    let check = |pods: &[&str], expected: &Expect| {
        let pods: Vec<Pod> = pods.iter().map(|text| pod(text)).collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let snapshot = Snapshot {
            resource: REPLICATION_CONTROLLERS,
            set: &elder.0,
            pods: &pods,
            related: &pods,
            failure: None,
        };
        let plan = plan(&snapshot, now());
        expected.assert_eq(&plan.to_string());
    };
    check(
        &["a n1 Running"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
    check(&["a n1 Running", "free n1 Running"], &expect!["patch Pod free"]);
    // One that is on its way out is made up for, and not told of.
    check(
        &["a n1 Running", "b n1 Running deleted"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
    check(
        &["a n1 Running", "b n1 Running"],
        &expect!["patch ReplicationController web/status"],
    );
}
