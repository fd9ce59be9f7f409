//! Writes of a node to its device objects and its Node, and the Secrets of its volumes' drivers.

use crate::nodes::{cluster, n1};
use crate::support::pod;
use serde_json::{Value, json};

#[tokio::test]
async fn a_node_tells_of_its_own_devices_only() {
    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
    let api = cluster().await;
    let slice = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}})
    };
    assert_eq!(api.post(SLICES, &slice("theirs", "n2")).await.code, 201);
    assert_eq!(n1(&api, "POST", SLICES, &slice("mine", "n1")).await.code, 201);
    let refused = n1(&api, "POST", SLICES, &slice("other", "n2")).await;
    let expected = "can only create ResourceSlice with the same NodeName as the requesting node";
    assert!(refused.message().contains(expected), "{}", refused.text());
    let none = "no relationship found between node 'n1' and this object";
    let broad = "can only list/watch/deletecollection resourceslices with nodeName field selector";
    for (method, path, expected) in [
        ("GET", "/mine", ""),
        ("GET", "/theirs", none),
        ("DELETE", "/theirs", none),
        ("PATCH", "/theirs", none),
        ("GET", "", broad),
        ("GET", "?fieldSelector=spec.nodeName%3Dn2", broad),
        ("DELETE", "?fieldSelector=spec.driver%3Dgpu.example.com", broad),
        ("GET", "?fieldSelector=spec.nodeName%3Dn1", ""),
        ("PATCH", "/mine", ""),
        ("DELETE", "?fieldSelector=spec.nodeName%3Dn1", ""),
    ] {
        let body = if method == "PATCH" { json!({}) } else { Value::Null };
        let answer = n1(&api, method, &format!("{SLICES}{path}"), &body).await;
        if expected.is_empty() {
            assert_eq!(answer.code, 200, "{method} {path}: {}", answer.text());
        } else {
            assert_eq!(answer.code, 403, "{method} {path}");
            assert!(
                answer.message().contains(expected),
                "{method} {path}: {}",
                answer.text()
            );
        }
    }
    assert_eq!(api.get(&format!("{SLICES}/mine")).await.code, 404);
    assert_eq!(api.get(&format!("{SLICES}/theirs")).await.code, 200);
}

#[tokio::test]
async fn a_node_does_not_say_by_what_it_is_configured() {
    let api = cluster().await;
    let source = json!({"configMap": {"namespace": "default", "name": "a", "kubeletConfigKey": "b"}});
    let change = json!({"spec": {"configSource": source}});
    let refused = n1(&api, "PATCH", "/api/v1/nodes/n1", &change).await;
    assert_eq!(
        refused.message(),
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to update configSource to a new non-nil configSource"
    );
    api.delete("/api/v1/nodes/n1", "").await;
    let node = json!({"metadata": {"name": "n1"}, "spec": {"configSource": source}});
    let refused = n1(&api, "POST", "/api/v1/nodes", &node).await;
    let expected = "node \"n1\" is not allowed to create pods with a non-nil configSource";
    assert!(refused.message().contains(expected), "{}", refused.text());
    assert_eq!(
        n1(&api, "POST", "/api/v1/nodes", &json!({"metadata": {"name": "n1"}}))
            .await
            .code,
        201
    );
}

#[tokio::test]
async fn a_node_reads_the_secrets_that_drivers_of_its_volumes_need_there() {
    let api = cluster().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drivers"}});
    assert_eq!(api.post("/api/v1/namespaces", &namespace).await.code, 201);
    let secrets = "/api/v1/namespaces/drivers/secrets";
    for (name, node) in [("near", "n1"), ("far", "n2")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        let pods = "/api/v1/namespaces/default/pods";
        assert_eq!(api.post(pods, &pod).await.code, 201);
        let secret = |what: &str| json!({"namespace": "drivers", "name": format!("{name}-{what}")});
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "default", "name": name},
                "csi": {
                    "driver": "csi.example.com", "volumeHandle": name,
                    "nodeStageSecretRef": secret("stage"), "controllerPublishSecretRef": secret("attach"),
                },
            },
        });
        let answer = api.post("/api/v1/persistentvolumes", &volume).await;
        assert_eq!(answer.code, 201, "{}", answer.text());
        for what in ["stage", "attach"] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-{what}")}});
            assert_eq!(api.post(secrets, &secret).await.code, 201);
        }
    }
    for (name, code) in [
        ("near-stage", 200),
        ("near-attach", 403),
        ("far-stage", 403),
        ("far-attach", 403),
    ] {
        let answer = n1(&api, "GET", &format!("{secrets}/{name}"), &Value::Null).await;
        assert_eq!(answer.code, code, "{name}: {}", answer.text());
    }
}
