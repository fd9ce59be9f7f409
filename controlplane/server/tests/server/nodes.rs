//! Rights of a node's agent and their limits (attack 22: a node accesses another node's objects).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::{Answer, Api, collect, pod};
use axum::body::Body;
use controlplane_server::User;
use controlplane_server::authn::identity::Source;
use controlplane_server::node::agents::{self, Agent, AgentError, Agents};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";

/// Pods `mine` and `theirs` on n1 and n2, each with a Secret and a `ConfigMap` of its own name.
pub(crate) async fn cluster() -> Api {
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

pub(crate) async fn n1(api: &Api, method: &str, path: &str, body: &Value) -> Answer {
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
async fn nodes_see_the_peers_of_policies_while_there_is_one_and_no_more() {
    let api = cluster().await;
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let look = async |peers: u16| {
        for (path, code) in [
            ("/apis/networking.k8s.io/v1/networkpolicies", 200),
            ("/api/v1/pods", peers),
            ("/api/v1/namespaces", peers),
            ("/api/v1/namespaces/default/pods/theirs", 403),
            ("/api/v1/namespaces/default", 403),
            ("/api/v1/secrets", 403),
            ("/api/v1/configmaps", 403),
        ] {
            let answer = n1(&api, "GET", path, &Value::Null).await;
            assert_eq!(answer.code, code, "{path}: {}", answer.text());
        }
    };
    look(403).await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}}});
    assert_eq!(api.post(policies, &policy).await.code, 201);
    look(200).await;
    assert_eq!(api.delete(&format!("{policies}/p"), "").await.code, 200);
    look(403).await;
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
            200,
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
         in the namespace \"default\": no relationship found between node 'n1' and this object"
    );
}

/// Requests that n1 tries: method, path, body, and the code of the answer.
fn attempts() -> Vec<(&'static str, String, Value, u16)> {
    let running = json!({"status": {"phase": "Running"}});
    let owned = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "5b4f5e2c"}]}});
    let claimed = json!({"status": {"extendedResourceClaimStatus": {"requestMappings": [], "resourceClaimName": "c"}}});
    let label = |label: &str| json!({"metadata": {"labels": {label: "x"}}});
    let named = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    vec![
        ("PATCH", format!("{PODS}/mine/status"), running.clone(), 200),
        ("PATCH", format!("{PODS}/theirs/status"), running, 403),
        ("PATCH", format!("{PODS}/mine/status"), label("app"), 403),
        ("PATCH", format!("{PODS}/mine/status"), claimed, 403),
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

#[tokio::test]
async fn attack_22_a_node_sees_no_other_node_and_no_other_lease() {
    let api = cluster().await;
    // The built-in network's routes need the list of all: an operator with another network may take it from nodes.
    assert_eq!(n1(&api, "GET", "/api/v1/nodes", &Value::Null).await.code, 200);
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/skiff:node-router";
    assert_eq!(api.delete(binding, "").await.code, 200);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let table = [
        ("/api/v1/nodes/n1".to_owned(), 200),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dn1".to_owned(), 200),
        ("/api/v1/nodes/n2".to_owned(), 403),
        ("/api/v1/nodes".to_owned(), 403),
        (format!("{leases}/n1"), 404),
        (format!("{leases}/n2"), 403),
        (leases.to_owned(), 403),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1".to_owned(),
            403,
        ),
        ("/api/v1/services".to_owned(), 200),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(), 403),
        ("/apis/apps/v1/deployments".to_owned(), 403),
    ];
    for (path, code) in table {
        let answer = n1(&api, "GET", &path, &Value::Null).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text());
    }
    let others = n1(&api, "GET", "/api/v1/nodes/n2", &Value::Null).await;
    let because = "node 'n1' cannot read 'n2', only its own Node object";
    assert!(others.message().ends_with(because), "{}", others.message());
}

#[tokio::test]
async fn attack_22_a_node_steers_no_pods_by_its_taints() {
    let api = cluster().await;
    let taints = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    assert_eq!(
        api.patch("/api/v1/nodes/n1", "merge-patch+json", &taints("a"))
            .await
            .code,
        200
    );
    for path in ["/api/v1/nodes/n1", "/api/v1/nodes/n1/status"] {
        let same = n1(&api, "PATCH", path, &json!({"metadata": {"annotations": {"a": "b"}}})).await;
        assert_eq!(same.code, 200, "{path}: {}", same.text());
    }
    for change in [taints("b"), json!({"spec": {"taints": null}})] {
        let refused = n1(&api, "PATCH", "/api/v1/nodes/n1", &change).await;
        assert_eq!(refused.code, 403);
        assert_eq!(
            refused.message(),
            "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify taints"
        );
    }
}

#[tokio::test]
async fn attack_22_a_node_registers_as_itself_without_protected_labels() {
    let api = cluster().await;
    for (name, because) in [
        (
            "n1",
            "is not allowed to set the following labels: node-role.kubernetes.io/x",
        ),
        ("n3", "is not allowed to modify node \"n3\""),
    ] {
        let node = json!({"metadata": {"name": name, "labels": {"node-role.kubernetes.io/x": ""}}});
        let refused = n1(&api, "POST", "/api/v1/nodes", &node).await;
        let expected = format!("nodes {name:?} is forbidden: node \"n1\" {because}");
        assert_eq!((refused.code.as_u16(), refused.message()), (403, expected));
    }
}

type Change = Box<dyn Fn(&mut Value)>;

/// A pod that n1 may show to the server.
fn mirror(uid: &str) -> Value {
    let mut pod = pod("static-n1");
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
    pod["spec"]["nodeName"] = json!("n1");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod
}

#[tokio::test]
async fn attack_22_a_mirror_pod_opens_nothing() {
    let api = cluster().await;
    let node = api.get("/api/v1/nodes/n1").await.json();
    let uid = node["metadata"]["uid"].as_str().unwrap();
    let owner = |key: &'static str, value: Value| {
        move |pod: &mut Value| pod["metadata"]["ownerReferences"][0][key] = value.clone()
    };
    let table: Vec<(&str, Change)> = vec![
        (
            "can only create mirror pods",
            Box::new(|pod| pod["metadata"]["annotations"] = json!({})),
        ),
        (
            "spec.nodeName set to itself",
            Box::new(|pod| pod["spec"]["nodeName"] = json!("n2")),
        ),
        (
            "an owner reference set to itself",
            Box::new(|pod| pod["metadata"]["ownerReferences"] = json!([])),
        ),
        ("an owner reference set to itself", Box::new(owner("name", json!("n2")))),
        (
            "a controller owner reference set to itself",
            Box::new(owner("controller", json!(false))),
        ),
        (
            "must not set blockOwnerDeletion",
            Box::new(owner("blockOwnerDeletion", json!(true))),
        ),
        ("UID mismatch", Box::new(owner("uid", json!("other")))),
        (
            "reference service accounts",
            Box::new(|pod| pod["spec"]["serviceAccountName"] = json!("default")),
        ),
        (
            "reference secrets",
            Box::new(|pod| pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "theirs"}}])),
        ),
        (
            "reference configmaps",
            Box::new(|pod| pod["spec"]["volumes"] = json!([{"name": "s", "configMap": {"name": "theirs"}}])),
        ),
        (
            "reference csidrivers (via CSI volumes)",
            Box::new(|pod| pod["spec"]["volumes"] = json!([{"name": "s", "csi": {"driver": "theirs"}}])),
        ),
        (
            "reference persistentvolumeclaims",
            Box::new(|pod| {
                pod["spec"]["volumes"] = json!([{"name": "s", "persistentVolumeClaim": {"claimName": "theirs"}}]);
            }),
        ),
    ];
    for (because, change) in table {
        let mut pod = mirror(uid);
        change(&mut pod);
        let refused = n1(&api, "POST", PODS, &pod).await;
        assert_eq!(refused.code, 403, "{because}: {}", refused.text());
        assert!(refused.message().contains(because), "{because}: {}", refused.message());
    }
}

#[tokio::test]
async fn attack_22_who_is_called_like_a_node_is_none_without_its_group() {
    let api = cluster().await;
    let request = Request::builder().uri("/api/v1/nodes/n1").body(Body::empty()).unwrap();
    let answer = collect(api.send_as(User::new("system:node:n1", []), request).await).await;
    assert_eq!(answer.code, 403);
}

#[tokio::test]
async fn pods_have_the_region_and_the_zone_of_their_node() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let api = Api::start().await;
    let zone =
        json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "kubernetes.io/os": "linux"});
    let node = json!({"metadata": {"name": "far", "labels": zone}});
    assert_eq!(api.post("/api/v1/nodes", &node).await.code.as_u16(), 201);
    let pod = |name: &str, node: Option<&str>, labels: &Value| {
        json!({"metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}]}})
    };
    let bind = async |name: &str, node: &str| {
        let binding = json!({"metadata": {"name": name, "labels": {"b": "2", "a": "2"}}, "target": {"kind": "Node", "name": node}});
        let answer = api.post(&format!("{PODS}/{name}/binding"), &binding).await;
        assert_eq!(answer.code.as_u16(), 201, "{}", answer.text());
    };
    let labels = async |name: &str| api.get(&format!("{PODS}/{name}")).await.json()["metadata"]["labels"].clone();
    for (name, node, own) in [
        ("bound", None, json!({"a": "1"})),
        ("elsewhere", None, json!({"a": "1"})),
        ("made-there", Some("far"), json!({"topology.kubernetes.io/zone": "own"})),
    ] {
        let answer = api.post(PODS, &pod(name, node, &own)).await;
        assert_eq!(answer.code.as_u16(), 201, "{}", answer.text());
    }
    bind("bound", "far").await;
    bind("elsewhere", "unknown").await;
    let (region, zone) = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone");
    assert_eq!(
        labels("bound").await,
        json!({"a": "1", "b": "2", region: "r", zone: "z"})
    );
    assert_eq!(labels("elsewhere").await, json!({"a": "1", "b": "2"}));
    assert_eq!(labels("made-there").await, json!({region: "r", zone: "own"}));
}

/// Agents that answer, or are not reached.
struct Reached(bool);

impl Agents for Reached {
    fn ask(&self, _: Agent, _: Request<Body>) -> BoxFuture<'static, Result<agents::Answer, AgentError>> {
        let because = "no route to host".to_owned();
        let answer = if self.0 {
            Ok(agents::Answer::Whole(Response::default()))
        } else {
            Err(AgentError::Unreachable { because })
        };
        Box::pin(async move { answer })
    }
}

#[tokio::test]
async fn a_node_opens_connections_only_to_a_server_that_does_not_reach_it() {
    let asked = async |api: &Api, user: &User, peer: &str| {
        let mut request = Request::get("/skiff/reverse-connection").body(Body::empty()).unwrap();
        let peer: SocketAddr = format!("{peer}:40000").parse().unwrap();
        request.extensions_mut().insert(Source(peer));
        collect(api.send_as(user.clone(), request).await).await.code
    };
    let node = User::new("system:node:n1", ["system:nodes"]);
    for (reached, peer, code) in [
        (false, "10.0.0.1", 204),
        (false, "[fd00::1]", 204),
        // It came through a proxy, or has another address.
        (true, "10.9.9.9", 204),
        (true, "127.0.0.1", 204),
        // The connection of this test cannot be kept.
        (false, "10.9.9.9", 400),
    ] {
        let api = Api::start_with(|mut options| {
            options.agents = Some(Arc::new(Reached(reached)));
            options
        })
        .await;
        let object = json!({"metadata": {"name": "n1"}, "spec": {}});
        assert_eq!(asked(&api, &node, peer).await, 503, "there is no Node");
        api.post("/api/v1/nodes", &object).await;
        assert_eq!(asked(&api, &node, peer).await, 503, "it has no address");
        let addresses = ["10.0.0.1", "fd00::1"].map(|address| json!({"type": "InternalIP", "address": address}));
        let status = json!({"status": {"addresses": addresses}});
        api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
        assert_eq!(asked(&api, &node, peer).await, code, "{reached} {peer}");
        let administrator = User::new("admin", ["system:masters"]);
        assert_eq!(asked(&api, &administrator, peer).await, 404);
        let stranger = User::new("jane", ["system:authenticated"]);
        assert_eq!(asked(&api, &stranger, peer).await, 403);
    }
}
