//! Evictions and disruption budgets, and the kinds of subresources' bodies.

use crate::support::{Api, pod};
use http::StatusCode;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// Running pods with a label, and a budget that the disruption controller has counted.
async fn running(api: &Api, names: &[&str], allowed: i32) {
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"set": "s"}}}});
    let made = api.post(BUDGETS, &budget).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2,
        "desiredHealthy": 2, "expectedPods": 2}});
    let counted = api
        .patch(&format!("{BUDGETS}/b/status"), "merge-patch+json", &status)
        .await;
    assert_eq!(counted.code, StatusCode::OK, "{}", counted.text());
    for name in names {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({"set": "s"});
        pod["spec"]["nodeName"] = json!("n1");
        api.post(PODS, &pod).await;
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let ready = api
            .patch(&format!("{PODS}/{name}/status"), "merge-patch+json", &ready)
            .await;
        assert_eq!(ready.code, StatusCode::OK, "{}", ready.text());
    }
}

fn eviction(name: &str, options: &Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options})
}

#[tokio::test]
async fn a_budget_without_room_refuses() {
    let api = Api::start().await;
    running(&api, &["a"], 0).await;
    let refused = api
        .post(&format!("{PODS}/a/eviction"), &eviction("a", &json!({})))
        .await;
    assert_eq!(refused.code, StatusCode::TOO_MANY_REQUESTS, "{}", refused.text());
    let status = refused.json();
    assert_eq!(
        status["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{"reason": "DisruptionBudget", "message": "The disruption budget b needs 2 healthy pods and has 2 currently"}])
    );
    let pod = api.get(&format!("{PODS}/a")).await.json();
    assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null);
    assert!(!pod["status"].to_string().contains("DisruptionTarget"));
}

#[tokio::test]
async fn an_allowance_that_is_used_up_and_a_second_budget_are_told() {
    let api = Api::start().await;
    running(&api, &["a", "c"], 1).await;
    let status = json!({"status": {"desiredHealthy": 1}});
    let counted = api
        .patch(&format!("{BUDGETS}/b/status"), "merge-patch+json", &status)
        .await;
    assert_eq!(counted.code, StatusCode::OK, "{}", counted.text());
    let (first, last) = (eviction("a", &json!({})), eviction("c", &json!({})));
    let evicted = api.post(&format!("{PODS}/a/eviction"), &first).await;
    assert_eq!(evicted.code, StatusCode::CREATED, "{}", evicted.text());
    let refused = api.post(&format!("{PODS}/c/eviction"), &last).await;
    assert_eq!(refused.code, StatusCode::TOO_MANY_REQUESTS, "{}", refused.text());
    assert_eq!(
        refused.json()["details"]["causes"][0]["message"],
        "The disruption budget b does not allow evicting pods currently"
    );
    let condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": "Held", "message": "by hand",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let held = json!({"status": {"conditions": [condition]}});
    let told = api
        .patch(&format!("{BUDGETS}/b/status"), "merge-patch+json", &held)
        .await;
    assert_eq!(told.code, StatusCode::OK, "{}", told.text());
    let refused = api.post(&format!("{PODS}/c/eviction"), &last).await;
    assert_eq!(
        refused.json()["details"]["causes"][0]["message"],
        "The disruption budget b does not allow evicting pods currently (Held): by hand"
    );
    let second = json!({"metadata": {"name": "second"}, "spec": {"maxUnavailable": 1, "selector": {}}});
    assert_eq!(api.post(BUDGETS, &second).await.code, StatusCode::CREATED);
    let refused = api.post(&format!("{PODS}/c/eviction"), &last).await;
    assert_eq!(
        refused.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 500,
            "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."})
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn evictions_at_once_do_not_share_an_allowance() {
    let api = Api::start().await;
    running(&api, &["a", "b", "c"], 1).await;
    let paths = ["a", "b", "c"].map(|name| (format!("{PODS}/{name}/eviction"), eviction(name, &json!({}))));
    let answers = api.create_at_once(paths).await;
    let evicted = answers
        .iter()
        .filter(|answer| answer.code == StatusCode::CREATED)
        .count();
    assert_eq!(evicted, 1);
    let budget = api.get(&format!("{BUDGETS}/b")).await.json();
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert_eq!(
        budget["status"]["disruptedPods"].as_object().map(serde_json::Map::len),
        Some(1)
    );
    assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
}

#[tokio::test]
async fn preconditions_come_before_everything() {
    let api = Api::start().await;
    running(&api, &["a"], 1).await;
    let wrong = eviction("a", &json!({"preconditions": {"uid": "other"}}));
    let refused = api.post(&format!("{PODS}/a/eviction"), &wrong).await;
    assert_eq!(refused.code, StatusCode::CONFLICT, "{}", refused.text());
    let pod = api.get(&format!("{PODS}/a")).await.json();
    assert!(!pod["status"].to_string().contains("DisruptionTarget"), "{pod}");
    let dry = eviction("a", &json!({"dryRun": ["All"]}));
    assert_eq!(
        api.post(&format!("{PODS}/a/eviction"), &dry).await.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
    );
    let nameless = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {}});
    let refused = api.post(&format!("{PODS}/a/eviction"), &nameless).await;
    assert_eq!(
        (refused.code, refused.message().as_str()),
        (
            StatusCode::BAD_REQUEST,
            "name in URL does not match name in Eviction object"
        )
    );
    let budget = api.get(&format!("{BUDGETS}/b")).await.json();
    assert_eq!(budget["status"]["disruptionsAllowed"], 1, "a dry run takes nothing");
}

#[tokio::test]
async fn bodies_of_subresources_are_of_what_was_seen_and_of_its_namespace() {
    let api = Api::start().await;
    let seen = api.post(PODS, &pod("a")).await.json()["metadata"]["resourceVersion"].clone();
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let now =
        api.patch(&format!("{PODS}/a"), "merge-patch+json", &label).await.json()["metadata"]["resourceVersion"].clone();
    let binding = |metadata: Value| json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n1"}});
    let path = format!("{PODS}/a/binding");
    let stale = api
        .post(&path, &binding(json!({"name": "a", "resourceVersion": seen})))
        .await;
    let (seen, now) = (seen.as_str().unwrap(), now.as_str().unwrap());
    assert_eq!(
        (stale.code.as_u16(), stale.message()),
        (
            409,
            format!(
                "Operation cannot be fulfilled on pods/binding \"a\": Precondition failed: ResourceVersion in precondition: {seen}, \
             ResourceVersion in object meta: {now}"
            )
        )
    );
    let elsewhere = json!({"name": "a", "namespace": "kube-system"});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": elsewhere});
    for (part, body) in [("binding", binding(elsewhere.clone())), ("eviction", eviction)] {
        let refused = api.post(&format!("{PODS}/a/{part}"), &body).await;
        let because = "the namespace of the provided object does not match the namespace sent on the request";
        assert_eq!(
            (refused.code.as_u16(), refused.message().as_str()),
            (400, because),
            "{part}"
        );
    }
    let fresh = api
        .post(
            &path,
            &binding(json!({"name": "a", "namespace": "default", "resourceVersion": now})),
        )
        .await;
    assert_eq!(fresh.code, 201, "{}", fresh.text());
}
