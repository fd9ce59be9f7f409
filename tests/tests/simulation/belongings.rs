//! What belongs to a namespace or a Service, and goes with it.

use serde_json::json;
use tests::cluster::Cluster;

use crate::{DEPLOYMENTS, deployment};

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_everything_with_it() {
    let cluster = Cluster::builder().nodes(1).start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "doomed" } });
    cluster.create("/api/v1/namespaces", &namespace).await;
    let mut web = deployment("web", 2, "nginx:1");
    web["metadata"]["namespace"] = json!("doomed");
    cluster
        .create("/apis/apps/v1/namespaces/doomed/deployments", &web)
        .await;
    cluster
        .eventually("two pods run", || async {
            let pods = cluster.list("/api/v1/namespaces/doomed/pods").await;
            let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            if running == 2 { Ok(()) } else { Err(running) }
        })
        .await;
    cluster
        .request("DELETE", "/api/v1/namespaces/doomed", "application/json", &json!({}))
        .await
        .expect("deleted");
    cluster
        .eventually("the namespace is gone", || async {
            let left = cluster.get("/api/v1/namespaces/doomed").await;
            if left.is_null() { Ok(()) } else { Err(left) }
        })
        .await;
    assert!(cluster.list("/api/v1/pods").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_keeps_everything_while_it_has_pods() {
    const DOOMED: &str = "/api/v1/namespaces/doomed";
    let cluster = Cluster::builder().nodes(1).start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "doomed" } });
    cluster.create("/api/v1/namespaces", &namespace).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "last", "finalizers": ["example.com/held"] },
        "spec": { "containers": [{ "name": "main", "image": "nginx:1" }] },
    });
    cluster.create(&format!("{DOOMED}/pods"), &pod).await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "needed" } });
    cluster.create(&format!("{DOOMED}/configmaps"), &map).await;
    let deleted = cluster.request("DELETE", DOOMED, "application/json", &json!({})).await;
    deleted.expect("deleted");
    let wanted = "Some resources are remaining: pods. has 1 resource instances";
    cluster
        .eventually("the namespace says what is left", || async {
            let found = cluster.get(DOOMED).await;
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|condition| condition["message"] == wanted) {
                Ok(())
            } else {
                Err(conditions)
            }
        })
        .await;
    let kept = cluster.get(&format!("{DOOMED}/configmaps/needed")).await;
    assert!(
        kept["metadata"]["name"] == "needed" && kept["metadata"]["deletionTimestamp"].is_null(),
        "{kept}"
    );
    let free = json!({ "metadata": { "finalizers": null } });
    let path = format!("{DOOMED}/pods/last");
    let patched = cluster
        .request("PATCH", &path, "application/merge-patch+json", &free)
        .await;
    patched.expect("patched");
    cluster
        .eventually("the namespace is gone", || async {
            let left = cluster.get(DOOMED).await;
            if left.is_null() { Ok(()) } else { Err(left) }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_the_pods_of_a_service() {
    const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/web";
    let cluster = Cluster::builder().nodes(1).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 2, "nginx:1")).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
    });
    cluster.create("/api/v1/namespaces/default/services", &service).await;
    let addresses = async |count: usize| {
        cluster
            .eventually("the endpoints are there", || async {
                let found = cluster.get(ENDPOINTS).await;
                let subset = &found["subsets"][0]["addresses"];
                let known = subset.as_array().map_or(0, Vec::len);
                if known == count { Ok(()) } else { Err(found) }
            })
            .await;
    };
    addresses(2).await;
    // What people take away comes back; with the Service it goes.
    let deleted = cluster
        .request("DELETE", ENDPOINTS, "application/json", &json!({}))
        .await;
    deleted.expect("deleted");
    addresses(2).await;
    let path = "/api/v1/namespaces/default/services/web";
    let deleted = cluster.request("DELETE", path, "application/json", &json!({})).await;
    deleted.expect("deleted");
    cluster
        .eventually("endpoints and slices are gone", || async {
            let slices = cluster
                .list("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")
                .await;
            let of_web =
                |slice: &&serde_json::Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web";
            let left = slices.iter().filter(of_web).count();
            let endpoints = cluster.get(ENDPOINTS).await;
            if left == 0 && endpoints.is_null() {
                Ok(())
            } else {
                Err((left, endpoints))
            }
        })
        .await;
}
