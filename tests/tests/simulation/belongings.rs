//! Objects that belong to a namespace or a Service, and go with it.

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
    // Deleted objects are created again; they are deleted with the Service.
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

/// Number of requests of one kind that the server has answered, by its own count.
async fn requests(cluster: &Cluster, labels: &[&str]) -> f64 {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let page = cluster.admin().request_text(request).await.expect("metrics");
    let wanted =
        |line: &&str| line.starts_with("apiserver_request_total{") && labels.iter().all(|label| line.contains(label));
    let counts = page.lines().filter(wanted);
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_again_and_again_in_a_namespace_that_goes() {
    const DOOMED: &str = "/api/v1/namespaces/doomed";
    let cluster = Cluster::builder().start().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "doomed" } });
    cluster.create("/api/v1/namespaces", &namespace).await;
    let mut web = deployment("web", 50, "nginx:1");
    web["metadata"]["namespace"] = json!("doomed");
    web["spec"]["template"]["metadata"]["finalizers"] = json!(["example.com/held"]);
    cluster
        .create("/apis/apps/v1/namespaces/doomed/deployments", &web)
        .await;
    let count = async |wanted: fn(&serde_json::Value) -> bool, what: &str| {
        let look = || async {
            let pods = cluster.list(&format!("{DOOMED}/pods")).await;
            let found = pods.iter().filter(|pod| wanted(pod)).count();
            if found == 50 { Ok(()) } else { Err((found, pods.len())) }
        };
        cluster.eventually(what, look).await;
    };
    count(|_| true, "the pods are there").await;
    let deleted = cluster.request("DELETE", DOOMED, "application/json", &json!({})).await;
    deleted.expect("deleted");
    count(
        |pod| !pod["metadata"]["deletionTimestamp"].is_null(),
        "the pods are to go",
    )
    .await;
    tokio::time::sleep(std::time::Duration::from_mins(1)).await;
    let refused = requests(&cluster, &["verb=\"POST\"", "code=\"403\""]).await;
    assert!(refused < 200.0, "{refused} requests were refused within a minute");
}

#[tokio::test(start_paused = true)]
async fn owners_that_cannot_be_found_are_not_told_of_without_end() {
    let cluster = Cluster::builder().start().await;
    let owner = |version: &str, kind: &str, uid: &serde_json::Value| json!([{ "apiVersion": version, "kind": kind, "name": "o", "uid": uid }]);
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "o" } });
    let path = "/api/v1/namespaces/default/configmaps";
    let made = cluster.create(path, &map).await;
    let map =
        json!({ "metadata": { "name": "made", "ownerReferences": owner("example.com/v1", "Widget", &json!("u")) } });
    cluster.create(path, &map).await;
    let role =
        json!({ "metadata": { "name": "r", "ownerReferences": owner("v1", "ConfigMap", &made["metadata"]["uid"]) } });
    cluster
        .create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role)
        .await;
    tokio::time::sleep(std::time::Duration::from_mins(1)).await;
    let events = cluster.list("/api/v1/namespaces/default/events").await;
    let told = events
        .iter()
        .filter(|event| event["reason"] == "OwnerRefInvalidNamespace");
    let told: Vec<_> = told
        .map(|event| (&event["involvedObject"]["kind"], &event["count"]))
        .collect();
    assert_eq!(told, [(&json!("ClusterRole"), &json!(1))]);
    let written = requests(&cluster, &["resource=\"events\"", "verb=\"PATCH\""]).await;
    assert!(written < 1.0, "{written} events were counted up");
    assert!(!cluster.get(&format!("{path}/made")).await.is_null());
    assert!(
        !cluster
            .get("/apis/rbac.authorization.k8s.io/v1/clusterroles/r")
            .await
            .is_null()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_only_others_keep_is_let_alone() {
    const PATH: &str = "/api/v1/namespaces/default/pods/held";
    let cluster = Cluster::builder().nodes(1).start().await;
    let pod = |name: &str, finalizers: &[&str]| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "finalizers": finalizers },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "main", "image": "nginx:1" }] },
        })
    };
    let all = "/api/v1/namespaces/default/pods";
    cluster.create(all, &pod("held", &["example.com/held"])).await;
    let runs = async |path: &str| {
        cluster
            .eventually("the pod runs", || async {
                let found = cluster.get(path).await;
                if found["status"]["phase"] == "Running" {
                    Ok(())
                } else {
                    Err(found)
                }
            })
            .await;
    };
    runs(PATH).await;
    let grace = json!({ "gracePeriodSeconds": 1 });
    let deleted = cluster.request("DELETE", PATH, "application/json", &grace).await;
    deleted.expect("deleted");
    cluster
        .eventually("the agent is done with it", || async {
            let asked = cluster.chaos.asked("DELETE", PATH);
            if asked == 1 { Ok(()) } else { Err(asked) }
        })
        .await;
    for number in 0..5 {
        let note = json!({ "metadata": { "annotations": { "number": number.to_string() } } });
        let patched = cluster
            .request("PATCH", PATH, "application/merge-patch+json", &note)
            .await;
        patched.expect("patched");
        // When this pod runs, the node has seen the earlier change.
        let name = format!("later-{number}");
        cluster.create(all, &pod(&name, &[])).await;
        runs(&format!("{all}/{name}")).await;
    }
    assert_eq!(cluster.chaos.asked("DELETE", PATH), 1, "nothing is left to do");
    let free = json!({ "metadata": { "finalizers": null } });
    let patched = cluster
        .request("PATCH", PATH, "application/merge-patch+json", &free)
        .await;
    patched.expect("patched");
    cluster.create(all, &pod("held", &[])).await;
    runs(PATH).await;
}
