use serde_json::{Value, from_value, json};

use super::*;

fn caches() -> Arc<Caches> {
    let caches = Caches::new();
    for (name, ready, taints) in [
        ("well", "True", json!([])),
        (
            "off",
            "Unknown",
            json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]),
        ),
        (
            "lost",
            "Unknown",
            json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }]),
        ),
    ] {
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        let node = json!({ "metadata": { "name": name }, "spec": { "taints": taints }, "status": { "conditions": conditions } });
        caches.nodes.apply(from_value(node).unwrap(), false);
    }
    Arc::new(caches)
}

fn put(caches: &Caches, name: &str, node: Option<&str>, deleted: bool, phase: &str) {
    let deleted = deleted.then_some("2026-01-01T00:00:00Z");
    let metadata = json!({ "name": name, "namespace": "ns", "uid": name, "deletionTimestamp": deleted });
    let pod: Value =
        json!({ "metadata": metadata, "spec": { "containers": [], "nodeName": node }, "status": { "phase": phase } });
    caches.pods.apply(from_value(pod).unwrap(), false);
}

#[tokio::test(start_paused = true)]
async fn pods_that_no_agent_will_end_are_failed_and_deleted() {
    let caches = caches();
    for node in ["well", "off", "lost"] {
        put(&caches, &format!("{node}-going"), Some(node), true, "Running");
        put(&caches, &format!("{node}-runs"), Some(node), false, "Running");
    }
    put(&caches, "free-going", None, true, "Pending");
    put(&caches, "free-failed", None, true, "Failed");
    put(&caches, "free-waits", None, false, "Pending");
    let pod_gc = PodGc::new(caches);
    let plan = |node: &str| {
        pod_gc
            .plan(&Key::new("", node), None, Timestamp::UNIX_EPOCH)
            .to_string()
    };
    let expected = |pod: &str| format!("patch Pod {pod}/status -> delete Pod {pod} again in 20s");
    assert_eq!(plan("well"), "");
    assert_eq!(plan("lost"), "");
    assert_eq!(plan("off"), expected("off-going"));
    assert_eq!(plan(UNBOUND), expected("free-going"));
    // Finalizers may keep them: it is tried again, but not at once.
    assert_eq!(plan("off"), " again in 20s");
    tokio::time::advance(PERIOD).await;
    assert_eq!(plan("off"), expected("off-going"));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_missing_node_are_deleted_after_a_while() {
    let caches = caches();
    put(&caches, "runs", Some("gone"), false, "Running");
    let pod_gc = PodGc::new(caches);
    let plan = || {
        pod_gc
            .plan(&Key::new("", "gone"), None, Timestamp::UNIX_EPOCH)
            .to_string()
    };
    assert_eq!(plan(), " again in 40s");
    tokio::time::advance(QUARANTINE).await;
    assert_eq!(plan(), "patch Pod runs/status -> delete Pod runs again in 20s");
    assert_eq!(plan(), " again in 20s");
}
