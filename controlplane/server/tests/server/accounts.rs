//! Every pod runs as a service account, and finds its token.

use std::time::Duration;

use crate::support::{Api, pod};
use http::StatusCode;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn created(api: &Api, body: &Value) -> Value {
    let answer = api.post(PODS, body).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    answer.json()["spec"].clone()
}

#[tokio::test]
async fn a_pod_runs_as_the_default_account_and_finds_its_token() {
    let api = Api::start().await;
    let mut body = pod("p");
    body["spec"]["initContainers"] = json!([{"name": "i", "image": "busybox", "volumeMounts":
        [{"name": "own", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}]);
    body["spec"]["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
    let spec = created(&api, &body).await;
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["serviceAccount"], "default");
    let volume = &spec["volumes"][1];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    assert_eq!(
        volume["projected"],
        json!({"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef":
                {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]})
    );
    let mounted =
        json!([{"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
    assert_eq!(spec["containers"][0]["volumeMounts"], mounted);
    let own = &spec["initContainers"][0]["volumeMounts"];
    assert_eq!(
        own.as_array().unwrap().len(),
        1,
        "its own mount at that place stays alone: {own}"
    );
}

#[tokio::test]
async fn who_wants_no_token_gets_none() {
    let api = Api::start().await;
    let quiet = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false,
        "imagePullSecrets": [{"name": "pull"}]});
    api.post("/api/v1/namespaces/default/serviceaccounts", &quiet).await;
    for (name, account, own, mounted) in [
        ("a", "quiet", None, false),
        ("b", "quiet", Some(true), true),
        ("c", "default", Some(false), false),
    ] {
        let mut body = pod(name);
        body["spec"]["serviceAccountName"] = account.into();
        if let Some(own) = own {
            body["spec"]["automountServiceAccountToken"] = own.into();
        }
        let spec = created(&api, &body).await;
        assert_eq!(spec["volumes"].is_array(), mounted, "{name}");
        let pull = if account == "quiet" {
            json!([{"name": "pull"}])
        } else {
            Value::Null
        };
        assert_eq!(spec["imagePullSecrets"], pull, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_its_account_is_refused() {
    let api = Api::start().await;
    let mut body = pod("p");
    body["spec"]["serviceAccountName"] = "nobody".into();
    let answer = api.post(PODS, &body).await;
    assert_eq!(answer.code.as_u16(), 403);
    assert_eq!(
        answer.message(),
        "pods \"p\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
    // The account `default` is made soon after its namespace: a pod waits for it.
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "new"}}))
        .await;
    let body = pod("p");
    let pods = "/api/v1/namespaces/new/pods";
    let (answer, ()) = tokio::join!(api.post(pods, &body), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        api.account("new", "default").await;
    });
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    api.delete("/api/v1/namespaces/new/serviceaccounts/default", "").await;
    let answer = api.post(pods, &pod("q")).await;
    assert_eq!(
        answer.message(),
        "pods \"q\" is forbidden: error looking up service account new/default: serviceaccount \"default\" not found"
    );
}

#[tokio::test]
async fn attack_22_containers_that_are_added_see_no_more_secrets() {
    let api = Api::start().await;
    let limited = json!({"metadata": {"name": "limited", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "secrets": [{"name": "own"}]});
    api.post("/api/v1/namespaces/default/serviceaccounts", &limited).await;
    let mut body = pod("p");
    body["spec"]["serviceAccountName"] = json!("limited");
    created(&api, &body).await;
    let path = format!("{PODS}/p/ephemeralcontainers");
    let add = async |name: &str, env: Value, from: Value| {
        let own = json!({"name": name, "image": "x", "env": env, "envFrom": from});
        let added = json!({"spec": {"ephemeralContainers": [own]}});
        api.patch(&path, "strategic-merge-patch+json", &added).await
    };
    let variable = |secret: &str| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
    let refused = add("d", variable("other"), json!([])).await;
    let denied = "referencing secret.secretName=\"other\" is not allowed because service account limited does not reference \
                  that secret";
    assert_eq!(
        (refused.code.as_u16(), refused.message()),
        (500, format!("ephemeral container d with envVar V {denied}"))
    );
    let refused = add("d", json!([]), json!([{"secretRef": {"name": "other"}}])).await;
    assert_eq!(
        refused.message(),
        format!("ephemeral container d with envFrom {denied}")
    );
    let added = add("d", variable("own"), json!([])).await;
    assert_eq!(added.code, StatusCode::OK, "{}", added.text());
}

#[tokio::test]
async fn a_mirror_pod_gains_nothing() {
    let api = Api::start().await;
    let mirror = |spec: Value| {
        let mut body = pod("m");
        body["spec"]["nodeName"] = json!("n");
        body["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        for (name, value) in spec.as_object().unwrap() {
            body["spec"][name] = value.clone();
        }
        body
    };
    for (spec, because) in [
        (
            json!({"serviceAccountName": "default"}),
            "a mirror pod may not reference service accounts",
        ),
        (
            json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
            "a mirror pod may not reference secrets",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ] {
        let answer = api.post(PODS, &mirror(spec)).await;
        assert_eq!(answer.code.as_u16(), 403);
        assert_eq!(answer.message(), format!("pods \"m\" is forbidden: {because}"));
    }
    assert_eq!(created(&api, &mirror(json!({}))).await["volumes"], Value::Null);
}
