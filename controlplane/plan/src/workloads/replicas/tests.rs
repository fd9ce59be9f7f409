use expect_test::{Expect, expect};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{Failure, ReplicationController, Snapshot, plan};
use crate::pod::Pod;
use crate::step::{REPLICA_SETS, REPLICATION_CONTROLLERS, Step};

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

/// `name node phase ready restarts=N sidecar=N`; pods whose name begins with `free` have no owner.
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
    let made = words
        .iter()
        .find_map(|word| word.strip_prefix("made="))
        .unwrap_or("00:00:00");
    let count = |key: &str| {
        let found = words.iter().find_map(|word| word.strip_prefix(key));
        found.map_or(0, |text| text.parse().unwrap())
    };
    let (restarts, of_sidecar): (i32, i32) = (count("restarts="), count("sidecar="));
    serde_json::from_value(json!({
        "metadata": {
            "name": words[0], "namespace": "default", "uid": words[0], "labels": { "app": "web" },
            "creationTimestamp": format!("2026-01-01T{made}Z"), "deletionTimestamp": deleted,
            "ownerReferences": if words[0].starts_with("free") { json!([]) } else { owner },
        },
        "spec": {
            "nodeName": node, "containers": [],
            "initContainers": [{ "name": "first" }, { "name": "beside", "restartPolicy": "Always" }],
        },
        "status": {
            "phase": words[2],
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "containerStatuses": [{ "name": "main", "restartCount": restarts }],
            "initContainerStatuses": [
                { "name": "first", "restartCount": 9 }, { "name": "beside", "restartCount": of_sidecar },
            ],
        },
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
    gone(
        &[
            "a n1 Running ready restarts=1",
            "b n2 Running ready restarts=1 sidecar=1",
        ],
        expect!["delete Pod b (SuccessfulDelete: Deleted pod: {})"],
    );
    gone(
        &["a n1 Running ready restarts=1", "b n2 Running ready sidecar=2"],
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
        deletion: false,
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
fn the_reason_of_a_failure_is_what_the_set_has_to_do() {
    let pods = [pod("a n1 Running ready"), pod("b n1 Running ready")];
    let pods: Vec<&Pod> = pods.iter().collect();
    for (replicas, deletion, expected) in [
        (1, true, Some("FailedDelete")),
        (2, true, None),
        (2, false, None),
        (3, false, Some("FailedCreate")),
        // Scaled the other way meanwhile.
        (1, false, None),
        (3, true, None),
    ] {
        let failure = Failure {
            deletion,
            reason: "Forbidden".to_owned(),
            message: "denied".to_owned(),
        };
        let set = set(replicas);
        let snapshot = Snapshot {
            resource: REPLICA_SETS,
            set: &set,
            pods: &pods,
            related: &pods,
            failure: Some(&failure),
        };
        let plan = plan(&snapshot, now());
        let patch = plan.stages.iter().flatten().find_map(|step| match step {
            Step::Patch { body, .. } => Some(body),
            Step::Create { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_) | Step::Event(_) => None,
        });
        let body = patch.unwrap_or_else(|| panic!("{plan}"));
        let condition = &body["status"]["conditions"][0];
        assert_eq!(condition["reason"].as_str(), expected, "{replicas}");
        assert_eq!(condition["message"].as_str(), expected.map(|_| "denied"), "{replicas}");
    }
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
    let replication_controller: ReplicationController = serde_json::from_value(json!({
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
            set: &replication_controller.0,
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
    // A terminating pod is replaced, and counts in no status field.
    check(
        &["a n1 Running", "b n1 Running deleted"],
        &expect!["create Pod web- (SuccessfulCreate: Created pod: {})"],
    );
    check(
        &["a n1 Running", "b n1 Running"],
        &expect!["patch ReplicationController web/status"],
    );
}

/// Returns how many pods are created, and after how many milliseconds the set is planned again.
fn replaced(replicas: i32, pods: &[String], now: &str) -> (usize, Option<u128>) {
    let (set, pods): (_, Vec<Pod>) = (set(replicas), pods.iter().map(|text| pod(text)).collect());
    let pods: Vec<&Pod> = pods.iter().collect();
    let snapshot = Snapshot {
        resource: REPLICA_SETS,
        set: &set,
        pods: &pods,
        related: &pods,
        failure: None,
    };
    let plan = plan(&snapshot, format!("2026-01-01T{now}Z").parse().unwrap());
    let lines: Vec<String> = plan.stages.iter().flatten().map(ToString::to_string).collect();
    let made = lines.iter().filter(|line| line.starts_with("create Pod")).count();
    (made, plan.again.map(|again| again.as_millis()))
}

#[test]
fn pods_that_a_node_rejects_are_replaced_ever_more_slowly() {
    let mut pods = Vec::new();
    let mut waits = Vec::new();
    let mut second = 0_u32;
    for round in 0..14 {
        let clock = |second: u32| format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
        let made = clock(second);
        // Three at first, then one at a time.
        pods.extend((0..if round == 0 { 3 } else { 1 }).map(|pod| format!("p{round}-{pod} n1 Failed made={made}")));
        let (made, again) = replaced(3, &pods, &format!("{made}.250"));
        assert_eq!(made, 0, "round {round}");
        let wait = u32::try_from(again.unwrap()).unwrap() + 250;
        waits.push(wait / 1000);
        second += wait / 1000;
        let expected = if round == 0 { 3 } else { 1 };
        assert_eq!(replaced(3, &pods, &clock(second)), (expected, None), "round {round}");
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60, 60]);
}

#[test]
fn a_pod_that_ran_is_replaced_at_once() {
    let failed = |made: &str| format!("gone-{made} n1 Failed made={made}");
    // Evicted after a while, repeatedly.
    let evicted: Vec<String> = ["00:00:00", "00:20:00", "00:40:00"].map(failed).into();
    assert_eq!(replaced(1, &evicted, "01:00:00"), (1, None));
    // Rejected once, and a newer pod runs: the missing ones are created.
    let mut pods: Vec<String> = ["00:00:01", "00:00:02", "00:00:04"].map(failed).into();
    pods.push("good n1 Running made=00:00:08".to_owned());
    assert_eq!(replaced(3, &pods, "00:00:09"), (2, None));
    // Terminating pods and pods of other owners do not count.
    let others = [
        "a n1 Failed deleted made=00:00:08",
        "free n1 Failed made=00:00:08",
        "b n1 Succeeded made=00:00:08",
    ];
    assert_eq!(replaced(1, &others.map(str::to_owned), "00:00:08"), (1, None));
    // Failures of long ago do not count.
    let old: Vec<String> = ["00:00:00", "00:00:01", "00:00:02"].map(failed).into();
    assert_eq!(replaced(3, &old, "00:40:00"), (3, None));
}
