//! Malicious admission webhooks: none makes the server wait forever, hold much memory, follow
//! redirects, or store invalid objects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::webhook::{MUTATING, Reply, VALIDATING, Webhook, configure, patched};
use crate::support::{Api, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_webhook_that_hangs_is_waited_for_as_long_as_its_configuration_says() {
    let api = Api::start().await;
    let hook = Webhook::start(|_review| Reply::Never).await;
    let mut entry = hook.entry("one.example.com");
    entry["timeoutSeconds"] = json!(1);
    configure(&api, VALIDATING, "one", json!([entry])).await;
    let began = Instant::now();
    let answer = api.post(MAPS, &config_map("a")).await;
    let port = hook.address.port();
    let because = format!("Post \"https://localhost:{port}/hook?timeout=1s\": context deadline exceeded");
    assert_eq!(
        answer.message(),
        format!(
            "Internal error occurred: failed calling webhook \"one.example.com\": failed to call webhook: {because}"
        )
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // The client may have less time than the webhook.
    let path = format!("{VALIDATING}/one");
    let long = json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 30}]);
    assert_eq!(api.patch(&path, "json-patch+json", &long).await.code, 200);
    let answer = api.post(&format!("{MAPS}?timeout=500ms"), &config_map("a")).await;
    let message = "Timeout: request did not complete within requested timeout - context deadline exceeded";
    assert_eq!((answer.code.as_u16(), answer.message().as_str()), (504, message));
}

#[tokio::test]
async fn a_webhook_that_hangs_and_may_fail_lets_requests_through() {
    let api = Api::start().await;
    let hook = Webhook::start(|_review| Reply::Never).await;
    let mut entry = hook.entry("one.example.com");
    entry["timeoutSeconds"] = json!(1);
    entry["failurePolicy"] = json!("Ignore");
    configure(&api, MUTATING, "one", json!([entry])).await;
    assert_eq!(api.post(MAPS, &config_map("a")).await.code, 201);
}

#[tokio::test]
async fn an_answer_of_ten_mebibytes_is_not_read_to_its_end() {
    let api = Api::start().await;
    let hook = Webhook::start(|_review| Reply::Raw(200, Vec::new(), vec![b' '; 10 << 20])).await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let answer = api.post(MAPS, &config_map("a")).await;
    let message = answer.message();
    assert!(
        message.ends_with("Original error: http: response body is larger than 6291456 bytes"),
        "{message}"
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let api = Api::start().await;
    let secret = Webhook::admitting().await;
    let to = format!("https://localhost:{}/secret", secret.address.port());
    let hook = Webhook::start(move |_review| Reply::Raw(307, vec![("location", to.clone())], Vec::new())).await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let answer = api.post(MAPS, &config_map("a")).await;
    let because = "the server responded with the status code 307 but did not return more information";
    assert_eq!(
        answer.message(),
        format!(
            "Internal error occurred: failed calling webhook \"one.example.com\": failed to call webhook: {because}"
        )
    );
    assert_eq!(secret.requests().len(), 0);
}

#[tokio::test]
async fn a_patch_changes_neither_uid_nor_name_nor_namespace_of_what_is_there() {
    let api = Api::start().await;
    assert_eq!(api.post(MAPS, &config_map("a")).await.code, 201);
    let patch = Arc::new(Mutex::new(Value::Null));
    let given = Arc::clone(&patch);
    let hook = Webhook::start(move |_review| patched(&given.lock().unwrap())).await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    let own = format!("{MAPS}/a");
    let before = api.get(&own).await.json();
    for (field, value) in [
        ("name", "b"),
        ("namespace", "kube-system"),
        ("uid", "u"),
        ("creationTimestamp", "2020-01-01T00:00:00Z"),
        ("deletionTimestamp", "2020-01-01T00:00:00Z"),
    ] {
        *patch.lock().unwrap() = json!([{"op": "add", "path": format!("/metadata/{field}"), "value": value}]);
        let answer = api
            .patch(&own, "merge-patch+json", &json!({"data": {"a": field}}))
            .await;
        if field == "creationTimestamp" {
            assert_eq!(answer.code, 200, "{}", answer.text());
        } else {
            let message =
                format!("ConfigMap \"a\" is invalid: metadata.{field}: Invalid value: {value:?}: field is immutable");
            assert_eq!((answer.code.as_u16(), answer.message()), (422, message));
        }
        let after = api.get(&own).await.json();
        for kept in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"] {
            assert_eq!(after["metadata"].get(kept), before["metadata"].get(kept), "{field}");
        }
    }
    assert_eq!(api.get(&format!("{MAPS}/b")).await.code, 404);
}

#[tokio::test]
async fn a_patch_neither_moves_what_is_created_nor_gives_it_a_uid() {
    let api = Api::start().await;
    let patch = Arc::new(Mutex::new(Value::Null));
    let given = Arc::clone(&patch);
    let hook = Webhook::start(move |_review| patched(&given.lock().unwrap())).await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    *patch.lock().unwrap() = json!([{"op": "add", "path": "/metadata/namespace", "value": "kube-system"}]);
    let moved = api.post(MAPS, &config_map("a")).await;
    let message = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!((moved.code.as_u16(), moved.message().as_str()), (400, message));
    *patch.lock().unwrap() = json!([{"op": "add", "path": "/metadata/uid", "value": "mine"},
        {"op": "add", "path": "/metadata/deletionTimestamp", "value": "2020-01-01T00:00:00Z"},
        {"op": "add", "path": "/metadata/generation", "value": 7}]);
    let made = api.post(MAPS, &config_map("a")).await.json();
    assert_ne!(made["metadata"]["uid"], "mine");
    assert!(made["metadata"].get("deletionTimestamp").is_none() && made["metadata"].get("generation").is_none());
    // An apply creates no object under another name than the URL's.
    *patch.lock().unwrap() = json!([{"op": "replace", "path": "/metadata/name", "value": "other"}]);
    let applied = api
        .apply(&format!("{MAPS}/mine"), "fieldManager=me", config_map("mine"))
        .await;
    let message = "the name of the object (other) does not match the name on the URL (mine)";
    assert_eq!((applied.code.as_u16(), applied.message().as_str()), (400, message));
}

#[tokio::test]
async fn a_webhook_that_calls_back_into_the_api_is_answered() {
    let api = Api::start().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "9"}}});
    assert_eq!(
        api.post("/api/v1/namespaces/default/resourcequotas", &quota).await.code,
        201
    );
    let status = json!({"status": {"hard": {"count/configmaps": "9"}, "used": {"count/configmaps": "0"}}});
    let path = "/api/v1/namespaces/default/resourcequotas/q/status";
    assert_eq!(api.patch(path, "merge-patch+json", &status).await.code, 200);
    let inner = api.clone();
    let hook = Webhook::start_with(Arc::new(move |review: Value| {
        let api = inner.clone();
        Box::pin(async move {
            // Its own request would be asked about, too: it leaves itself out by a label.
            let name = review["request"]["name"].as_str().unwrap_or_default();
            let mut more = config_map(&format!("{name}-more"));
            more["metadata"]["labels"] = json!({"from": "hook"});
            let made = api.post(MAPS, &more).await;
            Reply::Review(json!({"allowed": made.code == 201, "status": {"message": made.message()}}))
        })
    }))
    .await;
    let mut entry = hook.entry("one.example.com");
    entry["objectSelector"] = json!({"matchExpressions": [{"key": "from", "operator": "DoesNotExist"}]});
    entry["timeoutSeconds"] = json!(30);
    configure(&api, VALIDATING, "one", json!([entry])).await;
    let began = Instant::now();
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "it waited for itself: {:?}",
        began.elapsed()
    );
    let used = api.get("/api/v1/namespaces/default/resourcequotas/q").await.json();
    assert_eq!(used["status"]["used"]["count/configmaps"], "2");
}

#[tokio::test]
async fn a_webhook_that_asks_about_its_own_requests_ends_with_its_time() {
    let api = Api::start().await;
    let inner = api.clone();
    let hook = Webhook::start_with(Arc::new(move |review: Value| {
        let api = inner.clone();
        Box::pin(async move {
            let name = review["request"]["name"].as_str().unwrap_or_default();
            let made = api.post(MAPS, &config_map(&format!("{name}x"))).await;
            Reply::Review(json!({"allowed": made.code == 201}))
        })
    }))
    .await;
    let mut entry = hook.entry("one.example.com");
    entry["timeoutSeconds"] = json!(1);
    configure(&api, VALIDATING, "one", json!([entry])).await;
    let began = Instant::now();
    let answer = api.post(MAPS, &config_map("a")).await;
    assert!(matches!(answer.code.as_u16(), 400 | 500), "{}", answer.text());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(api.get(&format!("{MAPS}/a")).await.code, 404);
}
