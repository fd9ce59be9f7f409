//! What a node's agent may do, and what it may not (attack 22: a node reaches for another's).
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod support;

use controlplane_server::User;
use http::Request;
use serde_json::{Value, json};
use support::{Answer, Api, collect, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";

/// Pods `mine` and `theirs` on n1 and n2, each with a Secret and a `ConfigMap` of its own name.
async fn cluster() -> Api {
    let api = Api::start().await;
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": name}}]);
        pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": name}}]);
        assert_eq!(api.post(PODS, &pod).await.code, 201);
        for (kind, plural) in [("Secret", "secrets"), ("ConfigMap", "configmaps")] {
            let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
            let path = format!("/api/v1/namespaces/default/{plural}");
            assert_eq!(api.post(&path, &object).await.code, 201);
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        assert_eq!(api.post("/api/v1/nodes", &node).await.code, 201);
    }
    api
}

async fn n1(api: &Api, method: &str, path: &str, body: &Value) -> Answer {
    let kind = if method == "PATCH" { MERGE } else { "application/json" };
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let user = User::new("system:node:n1", ["system:nodes"]);
    collect(api.send_as(user, request.body(body.into()).unwrap()).await).await
}

#[tokio::test]
async fn attack_22_a_node_reads_only_what_its_pods_name() {
    let api = cluster().await;
    let namespace = "/api/v1/namespaces/default";
    let cases = [
        ("/secrets/mine", 200),
        ("/secrets/theirs", 403),
        ("/secrets/absent", 403),
        ("/secrets", 403),
        ("/secrets?fieldSelector=metadata.name%3Dmine", 200),
        ("/secrets?fieldSelector=metadata.name%3Dtheirs", 403),
        (
            "/secrets?fieldSelector=metadata.name%3Dmine&watch=true&timeoutSeconds=1&resourceVersion=999999",
            504,
        ),
        ("/secrets?fieldSelector=metadata.name!%3Dtheirs", 403),
        ("/configmaps/mine", 200),
        ("/configmaps/theirs", 403),
        ("/configmaps?watch=true", 403),
        ("/pods/mine", 200),
        ("/pods/theirs", 403),
        ("/pods/absent", 404),
        ("/pods/theirs/status", 403),
        ("/pods", 403),
        ("/pods?fieldSelector=spec.nodeName%3Dn1", 200),
        ("/pods?fieldSelector=spec.nodeName%3Dn2", 403),
    ];
    for (path, code) in cases {
        let answer = n1(&api, "GET", &format!("{namespace}{path}"), &Value::Null).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text());
    }
    for path in [
        "/api/v1/secrets",
        "/api/v1/watch/secrets",
        "/api/v1/secrets?fieldSelector=metadata.name%3Dmine",
    ] {
        assert_eq!(n1(&api, "GET", path, &Value::Null).await.code, 403, "{path}");
    }
    let listed = n1(
        &api,
        "GET",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
        &Value::Null,
    )
    .await;
    assert_eq!(listed.json()["items"].as_array().unwrap().len(), 1);
    let denied = n1(&api, "GET", &format!("{namespace}/secrets/theirs"), &Value::Null).await;
    assert_eq!(
        denied.message(),
        "secrets \"theirs\" is forbidden: User \"system:node:n1\" cannot get resource \"secrets\" in API group \"\" \
         in the namespace \"default\": no relationship found between node \"n1\" and this object"
    );
}

/// What n1 tries: method, path, body, and the code of the answer.
fn attempts() -> Vec<(&'static str, String, Value, u16)> {
    let running = json!({"status": {"phase": "Running"}});
    let owned = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "5b4f5e2c"}]}});
    let label = |label: &str| json!({"metadata": {"labels": {label: "x"}}});
    let named = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    vec![
        ("PATCH", format!("{PODS}/mine/status"), running.clone(), 200),
        ("PATCH", format!("{PODS}/theirs/status"), running, 403),
        ("PATCH", format!("{PODS}/mine/status"), label("app"), 403),
        ("PATCH", format!("{PODS}/mine"), label("app"), 403),
        ("POST", PODS.to_owned(), pod("new"), 403),
        (
            "POST",
            format!("{PODS}/theirs/eviction"),
            named("Eviction", "policy/v1", "theirs"),
            403,
        ),
        ("DELETE", format!("{PODS}/theirs"), Value::Null, 403),
        ("DELETE", format!("{PODS}/mine"), Value::Null, 200),
        ("DELETE", PODS.to_owned(), Value::Null, 403),
        ("POST", "/api/v1/nodes".to_owned(), named("Node", "v1", "n3"), 403),
        (
            "PATCH",
            "/api/v1/nodes/n2/status".to_owned(),
            json!({"status": {}}),
            403,
        ),
        (
            "PATCH",
            "/api/v1/nodes/n1".to_owned(),
            label("kubernetes.io/hostname"),
            200,
        ),
        ("PATCH", "/api/v1/nodes/n1".to_owned(), label("example.com/rack"), 200),
        (
            "PATCH",
            "/api/v1/nodes/n1".to_owned(),
            label("node-restriction.kubernetes.io/x"),
            403,
        ),
        (
            "PATCH",
            "/api/v1/nodes/n1".to_owned(),
            label("node-role.kubernetes.io/control-plane"),
            403,
        ),
        (
            "PATCH",
            "/api/v1/nodes/n1/status".to_owned(),
            label("node-role.kubernetes.io/x"),
            403,
        ),
        ("PATCH", "/api/v1/nodes/n1".to_owned(), owned, 403),
        (
            "POST",
            leases.to_owned(),
            named("Lease", "coordination.k8s.io/v1", "n1"),
            201,
        ),
        (
            "POST",
            leases.to_owned(),
            named("Lease", "coordination.k8s.io/v1", "n2"),
            403,
        ),
    ]
}

#[tokio::test]
async fn attack_22_a_node_writes_only_its_own() {
    let api = cluster().await;
    for (method, path, body, code) in attempts() {
        let answer = n1(&api, method, &path, &body).await;
        assert_eq!(answer.code, code, "{method} {path} {body}: {}", answer.text());
    }
    let theirs = api.get(&format!("{PODS}/theirs")).await.json();
    assert!(theirs["metadata"].get("deletionTimestamp").is_none() && theirs["status"]["conditions"].is_null());
    let denied = n1(&api, "DELETE", &format!("{PODS}/theirs"), &Value::Null).await;
    assert_eq!(
        denied.message(),
        "pods \"theirs\" is forbidden: node \"n1\" can only delete pods with spec.nodeName set to itself"
    );
}
