//! Findings for pods with problems.

use serde_json::{Value, json};

use super::pod::explain;

/// Returns whether there is a problem, and all findings as text.
fn said(pod: &Value, warnings: &[Value]) -> (bool, String) {
    let warnings: Vec<&Value> = warnings.iter().collect();
    let found = explain(pod, &warnings);
    let text: Vec<String> = found.iter().map(|finding| finding.text(&[])).collect();
    (found.iter().any(|finding| finding.trouble), text.concat())
}

fn pod(phase: &str, status: &Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "one", "containers": [{"name": "app", "resources": {"limits": {"memory": "16Mi"}}}]},
        "status": {"phase": phase, "containerStatuses": [status]},
    })
}

#[track_caller]
fn check(pod: &Value, warnings: &[Value], trouble: bool, words: &[&str]) {
    let (wrong, text) = said(pod, warnings);
    assert_eq!(wrong, trouble, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn a_healthy_pod_is_healthy() {
    let status = json!({"name": "app", "ready": true, "started": true, "state": {"running": {}}});
    check(&pod("Running", &status), &[], false, &[]);
}

#[test]
fn a_crash_loop_tells_the_last_end() {
    let ended = json!({"exitCode": 3, "reason": "Error", "startedAt": "A", "finishedAt": "B"});
    let status = json!({
        "name": "app", "restartCount": 4, "lastState": {"terminated": ended},
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}},
    });
    let words = [
        "Container app ends again and again (4 restarts)",
        "exit code 3",
        "from A to B",
    ];
    check(&pod("Running", &status), &[], true, &words);
}

#[test]
fn a_kill_for_memory_tells_the_limit() {
    let ended = json!({"exitCode": 137, "reason": "OOMKilled"});
    let status = json!({"name": "app", "state": {"terminated": ended}});
    let words = ["more memory than it may", "resources.limits.memory (now 16Mi)"];
    check(&pod("Failed", &status), &[], true, &words);
}

#[test]
fn an_image_that_cannot_be_pulled_tells_the_first_failure() {
    let status = json!({
        "name": "app", "image": "registry.invalid/app:1",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}},
    });
    let event = json!({"reason": "Failed", "message": "Failed to pull image \"registry.invalid/app:1\": no such host"});
    let words = [
        "cannot be pulled: registry.invalid/app:1",
        "no such host",
        "imagePullSecrets",
    ];
    check(&pod("Pending", &status), &[event], true, &words);
}

#[test]
fn a_pod_without_a_node_tells_what_is_short() {
    let message = "0/1 nodes are available: 1 Insufficient cpu.";
    let pod = json!({
        "metadata": {}, "spec": {},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]},
    });
    check(
        &pod,
        &[],
        true,
        &["No node can take the pod.", message, "resource requests"],
    );
}

#[test]
fn a_missing_claim_is_told_what_to_do() {
    let message = "0/1 nodes are available: persistentvolumeclaim \"data\" not found.";
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    let pod = json!({"metadata": {}, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}});
    check(&pod, &[], true, &[message, "create the claim"]);
}

#[test]
fn a_missing_volume_is_told_from_events() {
    let status = json!({"name": "app", "state": {"waiting": {"reason": "ContainerCreating"}}});
    let event = json!({"reason": "FailedMount", "message": "configmap \"settings\" not found"});
    check(
        &pod("Pending", &status),
        &[event],
        true,
        &["\"settings\" not found", "create what the volume names"],
    );
    check(&pod("Pending", &status), &[], false, &["ask again in a moment"]);
}

#[test]
fn probes_that_fail_are_told() {
    let status = json!({"name": "app", "ready": false, "started": true, "state": {"running": {}}});
    let event = json!({"reason": "Unhealthy", "message": "Readiness probe failed: connection refused"});
    check(
        &pod("Running", &status),
        &[event],
        true,
        &["readiness probe does not succeed", "connection refused"],
    );
    let ended = json!({"exitCode": 137, "reason": "Error"});
    let status = json!({"name": "app", "ready": true, "state": {"running": {}}, "lastState": {"terminated": ended}});
    let event = json!({"reason": "Unhealthy", "message": "Liveness probe failed: 500"});
    check(
        &pod("Running", &status),
        &[event],
        false,
        &["its probe failed, so the node killed it"],
    );
}

#[test]
fn who_was_killed_is_told_by_whom() {
    let ended = json!({"exitCode": 137, "reason": "Error"});
    let status = json!({"name": "app", "state": {"terminated": ended}});
    let event = |reason: &str, message: &str, container: &str| {
        let place = format!("spec.containers{{{container}}}");
        json!({"reason": reason, "message": message, "involvedObject": {"fieldPath": place}})
    };
    let failed = pod("Failed", &status);
    let hook = event("FailedPostStartHook", "PostStartHook failed", "app");
    let words = ["PostStartHook failed", "its postStart hook failed"];
    check(&failed, &[hook], true, &words);
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    let evicted = json!({"reason": "Evicted", "message": message});
    check(&failed, &[evicted], true, &["raise its ephemeral-storage limit"]);
    let message = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1Mi. ";
    let evicted = json!({"reason": "Evicted", "message": message});
    check(
        &failed,
        &[evicted],
        true,
        &["the node was short of what the message names"],
    );
    let other = event("FailedPostStartHook", "PostStartHook failed", "other");
    check(&failed, &[other], true, &["it printed nothing"]);
    let log = ["no disk".to_owned()];
    let found = explain(&failed, &[]);
    assert!(found[0].text(&log).contains("what it printed should tell the cause"));
}

#[test]
fn what_never_ran_is_told_so() {
    let ended = json!({"exitCode": 128, "reason": "StartError", "message": "no such file", "startedAt": "A"});
    let status = json!({"name": "app", "state": {"terminated": ended}});
    let words = ["It never ran", "no such file", "check command and args"];
    check(&pod("Failed", &status), &[], true, &words);
    let text = said(&pod("Failed", &status), &[]).1;
    assert!(!text.contains("It ran"), "{text}");
}

#[test]
fn output_does_not_steer_the_terminal() {
    assert_eq!(super::printable("a\x1b[2Jb\tc\u{9b}d"), "a\u{fffd}[2Jb\tc\u{fffd}d");
}
