//! `StatefulSets` and `DaemonSets` over a lossy network, with restarts of their controllers.

use serde_json::{Value, json};
use tests::cluster::{Bounds, Cluster, check_history};

use super::{MERGE, PODS, seeds, under_way};

pub(crate) const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
pub(crate) const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

pub(crate) fn workload(name: &str, image: &str, more: &Value) -> Value {
    let mut object = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": image }] },
            },
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } })
}

/// Waits until all pods are of the image, there are so many, and the status has these counts.
async fn settled(cluster: &Cluster, path: &str, image: &str, counts: &[&str]) {
    cluster
        .eventually("the rollout ends", || async {
            let found = cluster.get(path).await;
            let pods = cluster.list(PODS).await;
            let is_current = |pod: &&Value| pod["spec"]["containers"][0]["image"] == image;
            let current = pods.iter().filter(is_current).count();
            let status = &found["status"];
            let done = status["observedGeneration"] == found["metadata"]["generation"]
                && counts.iter().all(|field| status[field] == 3)
                && current == 3
                && pods.len() == 3;
            if done {
                Ok(())
            } else {
                Err((status.clone(), pods.len(), current))
            }
        })
        .await;
}

const STATEFUL: &[&str] = &[
    "replicas",
    "readyReplicas",
    "availableReplicas",
    "updatedReplicas",
    "currentReplicas",
];
const DAEMONS: &[&str] = &[
    "desiredNumberScheduled",
    "numberReady",
    "numberAvailable",
    "updatedNumberScheduled",
];

async fn one_seed(seed: u64, path: &str, object: &Value, counts: &[&str]) {
    let mut cluster = Cluster::builder().nodes(3).lossy(seed).start().await;
    cluster.create(path, object).await;
    let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let forgetful = seed.is_multiple_of(4);
    for pods in (1..3).filter(|_| forgetful) {
        under_way(&cluster, pods).await;
        cluster.restart_controllers();
    }
    settled(&cluster, &path, "nginx:1", counts).await;
    let patched = cluster.request("PATCH", &path, MERGE, &image("nginx:2")).await;
    patched.expect("patched");
    for updated in (1..3).filter(|_| forgetful) {
        cluster
            .eventually("the rollout goes on", || async {
                let pods = cluster.list(PODS).await;
                let current = pods
                    .iter()
                    .filter(|pod| pod["spec"]["containers"][0]["image"] == "nginx:2")
                    .count();
                if current >= updated { Ok(()) } else { Err(current) }
            })
            .await;
        cluster.restart_controllers();
    }
    settled(&cluster, &path, "nginx:2", counts).await;
    let bounds = Bounds { most: 3, least: 2 };
    let changes = check_history(&cluster.store, bounds)
        .await
        .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
    assert!(changes > 15, "seed {seed}: the history has only {changes} changes");
    let revisions = cluster.list(REVISIONS).await;
    assert_eq!(revisions.len(), 2, "seed {seed}: {revisions:#?}");
    // The scheduler only prefers to spread the pods of a stateful set.
    if !path.starts_with(DAEMON_SETS) {
        return;
    }
    let nodes: std::collections::BTreeSet<String> = cluster
        .list(PODS)
        .await
        .iter()
        .map(|pod| pod["spec"]["nodeName"].to_string())
        .collect();
    assert_eq!(nodes.len(), 3, "seed {seed}: one pod a node");
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_keeps_its_order_over_a_lossy_network() {
    let set = workload("web", "nginx:1", &json!({ "replicas": 3, "serviceName": "web" }));
    for seed in 0..seeds() {
        one_seed(seed, STATEFUL_SETS, &set, STATEFUL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_keeps_its_bounds_over_a_lossy_network() {
    let set = workload("log", "nginx:1", &json!({}));
    for seed in 0..seeds() {
        one_seed(seed, DAEMON_SETS, &set, DAEMONS).await;
    }
}

/// A new node gets its pod at once, and the pod of a deleted node is deleted with it.
#[tokio::test(start_paused = true)]
async fn daemons_come_and_go_with_nodes() {
    let mut cluster = Cluster::builder().nodes(2).start().await;
    cluster
        .create(DAEMON_SETS, &workload("log", "nginx:1", &json!({})))
        .await;
    let count = async |cluster: &Cluster, wanted: usize| {
        let look = || async {
            let pods = cluster.list(PODS).await;
            let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            let status = cluster.get(&format!("{DAEMON_SETS}/log")).await["status"].clone();
            let done = running == wanted && pods.len() == wanted && status["numberAvailable"] == wanted;
            if done {
                Ok(())
            } else {
                Err((running, pods.len(), status))
            }
        };
        cluster.eventually(&format!("{wanted} daemons run"), look).await;
    };
    count(&cluster, 2).await;
    let doomed = cluster.add_node("doomed");
    count(&cluster, 3).await;
    doomed.cancel();
    let deleted = cluster
        .request("DELETE", "/api/v1/nodes/doomed", "application/json", &json!({}))
        .await;
    deleted.expect("deleted");
    count(&cluster, 2).await;
}
