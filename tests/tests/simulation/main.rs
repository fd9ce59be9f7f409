//! A whole cluster in this process, under a paused clock, with a lossy network.
//!
//! Tests whose names end in `over_a_lossy_network` run `SEEDS` random histories, 100 by default;
//! `make simulation` runs 2,000 of each.

#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod attachments;
mod autoscaling;
mod belongings;
mod jobs;
mod losses;
mod rejections;
mod workloads;

use serde_json::{Value, json};
use tests::cluster::{Bounds, Cluster, check_history};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";

fn deployment(name: &str, replicas: u32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": image }] },
            },
        },
    })
}

async fn rolled_out(cluster: &Cluster, name: &str, replicas: i64, image: &str) {
    cluster
        .eventually("the rollout ends", || async {
            let found = cluster.get(&format!("{DEPLOYMENTS}/{name}")).await;
            let pods = cluster.list(PODS).await;
            let current = pods
                .iter()
                .filter(|pod| pod["spec"]["containers"][0]["image"] == image)
                .count();
            let status = &found["status"];
            let done = status["observedGeneration"] == found["metadata"]["generation"]
                && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]
                    .iter()
                    .all(|field| status[field] == replicas)
                && i64::try_from(current).ok() == Some(replicas)
                && pods.len() == current;
            if done {
                Ok(())
            } else {
                Err((status.clone(), pods.len(), current))
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_becomes_pods_and_goes() {
    tests::logging();
    let cluster = Cluster::builder().nodes(3).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 3, "nginx:1")).await;
    rolled_out(&cluster, "web", 3, "nginx:1").await;

    let nodes: std::collections::BTreeSet<String> = cluster
        .list(PODS)
        .await
        .iter()
        .map(|pod| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(nodes.len(), 3, "one pod a node");
    let sets = cluster.list(SETS).await;
    assert_eq!(sets.len(), 1);
    assert_eq!(
        sets[0]["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    let found = cluster.get(&format!("{DEPLOYMENTS}/web")).await;
    assert_eq!(
        found["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    let messages: Vec<Value> = found["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| one["message"].clone())
        .collect();
    let set = sets[0]["metadata"]["name"].as_str().unwrap_or_default();
    assert!(
        messages.contains(&json!("Deployment has minimum availability.")),
        "{messages:?}"
    );
    assert!(
        messages.contains(&json!(format!("ReplicaSet \"{set}\" has successfully progressed."))),
        "{messages:?}"
    );

    // Events are written after the changes that they report.
    let told_once = || async {
        let events = cluster.list("/api/v1/namespaces/default/events").await;
        let said = |reason: &str| events.iter().filter(|event| event["reason"] == reason).count();
        match (said("ScalingReplicaSet"), said("SuccessfulCreate"), said("Scheduled")) {
            (1, 3, 3) => Ok(()),
            _ => Err(format!("{events:#?}")),
        }
    };
    cluster.eventually("each step is told once", told_once).await;

    cluster
        .request(
            "DELETE",
            &format!("{DEPLOYMENTS}/web"),
            "application/json",
            &json!({ "propagationPolicy": "Background" }),
        )
        .await
        .expect("deleted");
    cluster
        .eventually("everything is gone", || async {
            let left = (
                cluster.list(DEPLOYMENTS).await.len(),
                cluster.list(SETS).await.len(),
                cluster.list(PODS).await.len(),
            );
            if left == (0, 0, 0) { Ok(()) } else { Err(left) }
        })
        .await;
    told_once().await.expect("nothing was told twice later");
}

/// Waits until there are so many pods.
async fn under_way(cluster: &Cluster, pods: usize) {
    cluster
        .eventually("there are pods", || async {
            let found = cluster.list(PODS).await.len();
            if found >= pods { Ok(()) } else { Err(found) }
        })
        .await;
}

async fn one_seed(seed: u64) {
    let mut cluster = Cluster::builder().nodes(3).lossy(seed).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 4, "nginx:1")).await;
    // Midway the controllers are restarted and lose their state.
    let forgetful = seed.is_multiple_of(4);
    for pods in (1..4).filter(|_| forgetful) {
        under_way(&cluster, pods).await;
        cluster.restart_controllers();
    }
    rolled_out(&cluster, "web", 4, "nginx:1").await;
    let image =
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "nginx:2" }] } } } });
    cluster
        .request("PATCH", &format!("{DEPLOYMENTS}/web"), MERGE, &image)
        .await
        .expect("patched");
    for updated in (1..4).filter(|_| forgetful) {
        cluster
            .eventually("the rollout goes on", || async {
                let status = cluster.get(&format!("{DEPLOYMENTS}/web")).await["status"].clone();
                if status["updatedReplicas"].as_i64() >= Some(updated) {
                    Ok(())
                } else {
                    Err(status)
                }
            })
            .await;
        cluster.restart_controllers();
    }
    rolled_out(&cluster, "web", 4, "nginx:2").await;
    let bounds = Bounds { most: 5, least: 3 };
    let changes = check_history(&cluster.store, bounds)
        .await
        .unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
    assert!(changes > 20, "seed {seed}: the history has only {changes} changes");
}

#[tokio::test(start_paused = true)]
async fn attack_41_a_rollout_keeps_its_bounds_over_a_lossy_network() {
    for seed in 0..seeds() {
        one_seed(seed).await;
    }
}

/// Number of random histories.
fn seeds() -> u64 {
    let seeds = std::env::var("SEEDS").ok();
    seeds.and_then(|text| text.parse().ok()).unwrap_or(100)
}

#[tokio::test(start_paused = true)]
async fn a_rollback_brings_back_the_old_set() {
    let cluster = Cluster::builder().nodes(2).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 3, "nginx:1")).await;
    rolled_out(&cluster, "web", 3, "nginx:1").await;
    for image in ["nginx:2", "nginx:1"] {
        let change =
            json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } });
        let patched = cluster
            .request("PATCH", &format!("{DEPLOYMENTS}/web"), MERGE, &change)
            .await;
        patched.expect("patched");
        rolled_out(&cluster, "web", 3, image).await;
    }
    let sets = cluster.list(SETS).await;
    assert_eq!(sets.len(), 2, "the first set came back");
    let annotation =
        |set: &Value, key: &str| set["metadata"]["annotations"][format!("deployment.kubernetes.io/{key}")].clone();
    let current = sets
        .iter()
        .find(|set| set["spec"]["replicas"] == 3)
        .expect("a set has all pods");
    assert_eq!(annotation(current, "revision"), "3");
    assert_eq!(annotation(current, "revision-history"), "1");
}

#[tokio::test(start_paused = true)]
async fn pods_leave_a_node_that_fell_silent() {
    let mut cluster = Cluster::builder().nodes(1).start().await;
    let doomed = cluster.add_node("doomed");
    cluster.create(DEPLOYMENTS, &deployment("web", 2, "nginx:1")).await;
    rolled_out(&cluster, "web", 2, "nginx:1").await;
    doomed.cancel();
    cluster
        .eventually("the node is unknown and its pod is replaced", || async {
            let node = cluster.get("/api/v1/nodes/doomed").await;
            let ready = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["type"] == "Ready")
                .cloned();
            let pods = cluster.list(PODS).await;
            let alive = pods
                .iter()
                .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
                .filter(|pod| pod["spec"]["nodeName"] == "node-1")
                .count();
            let unknown = ready
                .as_ref()
                .is_some_and(|ready| ready["reason"] == "NodeStatusUnknown");
            if unknown && alive == 2 {
                Ok(())
            } else {
                Err((ready, alive, pods.len()))
            }
        })
        .await;
}

/// A panic of the agent in the work for one pod costs that pod some seconds, and does not affect
/// the others.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_worker_panics_gets_a_new_one() {
    for image in ["stumbles:1", "stumbles-alone:latest"] {
        let cluster = Cluster::builder().nodes(1).start().await;
        for (name, image) in [("other", "nginx:1"), ("unlucky", image)] {
            let pod =
                json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "main", "image": image }] } });
            cluster.create(PODS, &pod).await;
        }
        for name in ["other", "unlucky"] {
            cluster
                .eventually("the pod runs", || async {
                    let pod = cluster.get(&format!("{PODS}/{name}")).await;
                    if pod["status"]["phase"] == "Running" {
                        Ok(())
                    } else {
                        Err((image, pod["status"].clone()))
                    }
                })
                .await;
        }
        let path = format!("{PODS}/unlucky");
        cluster
            .request("DELETE", &path, "application/json", &Value::Null)
            .await
            .expect("deleted");
        cluster
            .eventually("the pod goes", || async {
                let pod = cluster.get(&path).await;
                if pod.is_null() {
                    Ok(())
                } else {
                    Err(pod["status"].clone())
                }
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_36_a_clock_that_jumps_evicts_nobody() {
    let cluster = Cluster::builder().nodes(3).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 6, "nginx:1")).await;
    rolled_out(&cluster, "web", 6, "nginx:1").await;
    let names = async || {
        let mut names: Vec<String> = cluster
            .list(PODS)
            .await
            .iter()
            .map(|pod| pod["metadata"]["uid"].to_string())
            .collect();
        names.sort_unstable();
        names
    };
    let before = names().await;
    for jump in [3600, -7200, 3600] {
        cluster.jump(jump);
        for _ in 0..60 {
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            for node in cluster.list("/api/v1/nodes").await {
                let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let ready = conditions
                    .iter()
                    .find(|condition| condition["type"] == "Ready")
                    .cloned();
                assert_eq!(ready.unwrap_or_default()["status"], "True", "after {jump} s: {node}");
            }
        }
        assert_eq!(names().await, before, "after {jump} s");
    }
    rolled_out(&cluster, "web", 6, "nginx:1").await;
}

/// While a machine sleeps the agent's clock stands still, and tokens grow old.
#[tokio::test(start_paused = true)]
async fn a_pod_has_a_new_token_after_its_machine_slept() {
    let cluster = Cluster::builder().nodes(1).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 1, "nginx:1")).await;
    rolled_out(&cluster, "web", 1, "nginx:1").await;
    let before = tokens(&cluster.directory().join("node-1"));
    assert!(!before.is_empty());
    cluster.jump(4000);
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    let after = tokens(&cluster.directory().join("node-1"));
    assert!(!after.is_empty() && before.iter().all(|old| !after.contains(old)));
}

/// Reads the service account tokens in and below a directory.
fn tokens(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let read = |path: std::path::PathBuf| {
        if path.is_dir() {
            return tokens(&path);
        }
        let is_token = path.ends_with("token");
        let token = is_token.then(|| std::fs::read_to_string(path).expect("a token"));
        token.into_iter().collect()
    };
    paths.flat_map(read).collect()
}

#[tokio::test(start_paused = true)]
async fn events_that_are_over_make_room_in_their_quota() {
    let cluster = Cluster::builder().start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({ "metadata": { "name": "few" }, "spec": { "hard": { "count/events": "1" } } });
    cluster.create(quotas, &quota).await;
    let used = async |wanted: &str| {
        let what = format!("the quota says {wanted}");
        let look = || async {
            let found = cluster.get(&format!("{quotas}/few")).await;
            let used = found["status"]["used"]["count/events"] == wanted;
            if used { Ok(()) } else { Err(found) }
        };
        cluster.eventually(&what, look).await;
    };
    used("0").await;
    let event = |name: &str| {
        json!({
            "metadata": { "name": name }, "reason": "Tested", "type": "Normal",
            "involvedObject": { "kind": "Pod", "name": "p", "namespace": "default" },
        })
    };
    let events = "/api/v1/namespaces/default/events";
    cluster.create(events, &event("first")).await;
    used("1").await;
    let refused = cluster
        .request("POST", events, "application/json", &event("second"))
        .await;
    let refused = refused.expect_err("the quota is full").to_string();
    assert!(refused.contains("exceeded quota: few"), "{refused}");
    for _ in 0..8 {
        cluster.store.maintain().await;
        tokio::time::sleep(std::time::Duration::from_mins(10)).await;
    }
    used("0").await;
    cluster.create(events, &event("second")).await;
}

/// Upstream's scheduler also clears `nominatedNodeName` when no preemption can help.
#[tokio::test(start_paused = true)]
async fn a_promise_that_cannot_be_kept_is_taken_out_of_the_status() {
    let mut cluster = Cluster::builder().nodes(1).start().await;
    let greedy = json!({ "metadata": { "name": "greedy" }, "spec": { "containers": [
        { "name": "main", "image": "nginx:1", "resources": { "requests": { "cpu": "1000" } } },
    ] } });
    cluster.create(PODS, &greedy).await;
    let path = format!("{PODS}/greedy");
    refused_without_a_promise(&cluster, &path, 1).await;
    let promise = json!({ "status": { "nominatedNodeName": "node-1" } });
    let kind = "application/merge-patch+json";
    let promised = cluster
        .request("PATCH", &format!("{path}/status"), kind, &promise)
        .await;
    assert_eq!(promised.expect("patched")["status"]["nominatedNodeName"], "node-1");
    cluster.add_node("node-2");
    refused_without_a_promise(&cluster, &path, 2).await;
}

async fn refused_without_a_promise(cluster: &Cluster, path: &str, nodes: usize) {
    let what = format!("the pod was refused by {nodes} and is promised nothing");
    let look = || async {
        let status = cluster.get(path).await["status"].clone();
        let message = status["conditions"][0]["message"].as_str().unwrap_or_default();
        let refused = message.starts_with(&format!("0/{nodes} nodes are available"));
        if refused && status["nominatedNodeName"].is_null() {
            Ok(())
        } else {
            Err(status)
        }
    };
    cluster.eventually(&what, look).await;
}
