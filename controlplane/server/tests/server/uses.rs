//! Reports of discouraged or failed authentication: in the audit log, the metrics, and on Secrets.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Api, Kept};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane_server::ops::audit::{Record, Sink, Stage};
use http::Method;
use serde_json::{Value, json};

const SECRET: &str = "/api/v1/namespaces/default/secrets/kept";
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/robot";
const TRACKING: &str = "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";

async fn start() -> (Api, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = Arc::<Kept>::clone(&kept);
    let api = Api::start_with(|mut options| {
        options.audit = Some(sink);
        options
    })
    .await;
    (api, kept)
}

fn last(kept: &Kept) -> Record {
    kept.0.lock().unwrap().last().unwrap().clone()
}

fn annotation(record: &Record, name: &str) -> Option<String> {
    let mut all = record.annotations.iter();
    all.find(|(own, _)| *own == name).map(|(_, value)| value.clone())
}

#[tokio::test]
async fn a_request_that_proves_nothing_is_recorded_with_what_it_is_about() {
    let (api, kept) = start().await;
    let path = "/api/v1/watch/namespaces/default/pods/web";
    let headers = [("authorization", "Bearer nothing")];
    for path in [path, "/api/v1/namespaces/default/pods/web"] {
        let answer = api.outside(Method::GET, path, &headers, &Value::Null).await;
        assert_eq!(answer.code.as_u16(), 401);
        let record = last(&kept);
        let object = record.object.unwrap();
        assert_eq!((object.resource.as_str(), object.name.as_str()), ("pods", "web"));
        assert_eq!((record.code, record.stage), (401, Stage::ResponseStarted), "{path}");
        assert_eq!(record.verb, if path.contains("watch") { "watch" } else { "get" });
        assert_eq!(record.user.name, "");
        let failure = record.failure.unwrap();
        assert_eq!(failure.message.as_deref(), Some("Unauthorized"));
    }
    let with = |record: &&Record| record.code == 401;
    assert_eq!(
        kept.0.lock().unwrap().iter().filter(with).count(),
        2,
        "each of them once"
    );
}

#[tokio::test]
async fn uses_of_deprecated_kinds_are_recorded_and_counted() {
    let (api, kept) = start().await;
    let line = "apiserver_requested_deprecated_apis{group=\"\",version=\"v1\",resource=\"endpoints\",subresource=\"\",\
                removed_release=\"\"} 1\n";
    api.get("/api/v1/namespaces/default/pods").await;
    assert_eq!(annotation(&last(&kept), "k8s.io/deprecated"), None);
    assert!(!api.get("/metrics").await.text().contains(line));
    api.get("/api/v1/namespaces/default/endpoints").await;
    assert_eq!(annotation(&last(&kept), "k8s.io/deprecated").as_deref(), Some("true"));
    assert!(api.get("/metrics").await.text().contains(line));
}

/// A token in the Secret `kept`.
async fn kept_token(api: &Api) -> String {
    api.account("default", "robot").await;
    let account = api.get(ACCOUNT).await.json();
    let uid = account["metadata"]["uid"].as_str().unwrap();
    let token = api.key.secret_token("default", "robot", uid, "kept").unwrap();
    let body = json!({"metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": STANDARD.encode(&token)}});
    let made = api.post("/api/v1/namespaces/default/secrets", &body).await;
    assert_eq!(made.code.as_u16(), 201, "{}", made.text());
    token
}

async fn last_used(api: &Api) -> Value {
    api.get(SECRET).await.json()["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].clone()
}

#[tokio::test(start_paused = true)]
async fn uses_of_tokens_in_secrets_are_told() {
    let (api, kept) = start().await;
    assert_eq!(api.get(TRACKING).await.json()["data"]["since"], "2026-01-02");
    let token = kept_token(&api).await;
    let header = format!("Bearer {token}");
    let asks = async || {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let headers = [("authorization", header.as_str())];
        let answer = api.outside(Method::POST, path, &headers, &json!({})).await;
        (answer, last(&kept))
    };
    assert_eq!(last_used(&api).await, Value::Null);
    let (answer, record) = asks().await;
    assert_eq!(answer.code.as_u16(), 201);
    assert!(answer.warnings().is_empty());
    let manual = "authentication.k8s.io/legacy-token-manual-secret";
    assert_eq!(annotation(&record, manual).as_deref(), Some("kept"));
    assert_eq!(last_used(&api).await, "2026-01-02");
    let revision = api.get(SECRET).await.json()["metadata"]["resourceVersion"].clone();
    asks().await;
    assert_eq!(
        api.get(SECRET).await.json()["metadata"]["resourceVersion"],
        revision,
        "once a day"
    );
    tokio::time::advance(Duration::from_hours(24)).await;

    let names = json!({"secrets": [{"name": "kept"}]});
    api.patch(ACCOUNT, "merge-patch+json", &names).await;
    let (answer, record) = asks().await;
    assert_eq!(
        answer.warnings(),
        [
            "299 - \"Use tokens from the TokenRequest API or manually created secret-based tokens \
        instead of auto-generated secret-based tokens.\""
        ]
    );
    let generated = "authentication.k8s.io/legacy-token-autogenerated-secret";
    assert_eq!(annotation(&record, generated).as_deref(), Some("kept"));
    assert_eq!(last_used(&api).await, "2026-01-03");

    tokio::time::advance(Duration::from_hours(24)).await;
    let mark = |since: Value| json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": since}}});
    api.patch(SECRET, "merge-patch+json", &mark("2026-01-04".into())).await;
    let (answer, record) = asks().await;
    assert_eq!(answer.code.as_u16(), 401);
    let invalid = "authentication.k8s.io/legacy-token-invalidated";
    assert_eq!(annotation(&record, invalid).as_deref(), Some("kept/default"));
    assert_eq!(last_used(&api).await, "2026-01-04");
    let review = json!({"spec": {"token": token}});
    let review = api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
    let said = review.json()["status"]["error"].as_str().unwrap().to_owned();
    let wanted = "the token in secret default/kept for service account default/robot has been marked invalid.";
    assert!(said.contains(wanted), "{said}");
    assert_eq!(annotation(&last(&kept), invalid).as_deref(), Some("kept/default"));
    let page = api.get("/metrics").await.text();
    for line in [
        "serviceaccount_legacy_manual_token_uses_total 2\n",
        "serviceaccount_legacy_auto_token_uses_total 1\n",
        "serviceaccount_invalid_legacy_auto_token_uses_total 2\n",
    ] {
        assert!(page.contains(line), "{line}");
    }
    api.patch(SECRET, "merge-patch+json", &mark(Value::Null)).await;
    assert_eq!(
        asks().await.0.code.as_u16(),
        201,
        "whoever takes the mark away lets it count again"
    );
}

/// The server starts with corrupted tracking data.
#[tokio::test]
async fn since_when_uses_are_told_is_mended() {
    let (api, _) = start().await;
    for broken in ["never", "2026-1-2", "2026-02-30"] {
        let body = json!({"data": {"since": broken, "other": "x"}});
        api.patch(TRACKING, "merge-patch+json", &body).await;
        api.server.bootstrap().await.unwrap();
        let data = api.get(TRACKING).await.json()["data"].clone();
        assert_eq!(data, json!({"since": "2026-01-02", "other": "x"}), "{broken}");
    }
}
