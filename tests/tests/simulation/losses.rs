//! Nodes that are lost for good under pods of each controller, over a lossy network.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use store::{EventKind, Prefix};
use tests::cluster::{Bounds, Cluster, check_history};
use tokio_util::sync::CancellationToken;

use crate::workloads::{DAEMON_SETS, STATEFUL_SETS, workload};
use crate::{DEPLOYMENTS, PODS, autoscaling, deployment, jobs, seeds};

const DOOMED: &str = "doomed";

/// A cluster with a node that will be lost.
async fn cluster(seed: u64) -> (Cluster, CancellationToken) {
    let mut cluster = Cluster::builder().nodes(2).lossy(seed).start().await;
    let node = cluster.add_node(DOOMED);
    cluster
        .eventually("the nodes are there", || async {
            let nodes = cluster.list("/api/v1/nodes").await.len();
            if nodes == 3 { Ok(()) } else { Err(nodes) }
        })
        .await;
    (cluster, node)
}

/// Ends the node's agent once a pod is bound to it, and waits until the control plane knows.
async fn lose(cluster: &Cluster, node: &CancellationToken) {
    cluster
        .eventually("the node has a pod", || async {
            let pods = cluster.list(PODS).await;
            let is_there = |pod: &Value| {
                let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
                pod["spec"]["nodeName"] == DOOMED && !over
            };
            // All pods of a short Job may have been on other nodes.
            let job = cluster.get(&format!("{}/work", jobs::JOBS)).await;
            if pods.iter().any(is_there) || !job["status"]["completionTime"].is_null() {
                Ok(())
            } else {
                Err(pods.len())
            }
        })
        .await;
    node.cancel();
    cluster
        .eventually("the node is unknown", || async {
            let node = cluster.get(&format!("/api/v1/nodes/{DOOMED}")).await;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let unknown = |one: &Value| one["type"] == "Ready" && one["reason"] == "NodeStatusUnknown";
            if conditions.iter().any(unknown) {
                Ok(())
            } else {
                Err(conditions)
            }
        })
        .await;
}

/// Deletes the lost node's object, as its operator does: its pods go then.
async fn forget(cluster: &Cluster) {
    let path = format!("/api/v1/nodes/{DOOMED}");
    let deleted = cluster.request("DELETE", &path, "application/json", &json!({})).await;
    deleted.expect("deleted");
}

/// Waits until so many pods run, none is left on the lost node, and the status of the object counts them.
async fn recovered(cluster: &Cluster, path: &str, wanted: usize, count: &str) {
    cluster
        .eventually("the pods run elsewhere", || async {
            let pods = cluster.list(PODS).await;
            let runs = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] != DOOMED;
            let running = pods.iter().filter(runs).count();
            let status = cluster.get(path).await["status"].clone();
            if (running, pods.len()) == (wanted, wanted) && status[count] == wanted {
                Ok(())
            } else {
                Err((running, pods.len(), status))
            }
        })
        .await;
}

async fn names(cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.list(PODS).await;
    pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect()
}

/// Pods with stable names wait for the end of their predecessors, which is unknown while the node
/// is there.
async fn of_a_stateful_set(seed: u64) {
    let (cluster, node) = cluster(seed).await;
    let set = workload("web", "nginx:1", &json!({ "replicas": 3, "serviceName": "web" }));
    cluster.create(STATEFUL_SETS, &set).await;
    let path = format!("{STATEFUL_SETS}/web");
    let ready = || async {
        let status = cluster.get(&path).await["status"].clone();
        if status["readyReplicas"] == 3 {
            Ok(())
        } else {
            Err(status)
        }
    };
    cluster.eventually("three pods are ready", ready).await;
    let on_lost = cluster.list(PODS).await;
    let on_lost = on_lost.iter().filter(|pod| pod["spec"]["nodeName"] == DOOMED).count();
    if on_lost > 0 {
        lose(&cluster, &node).await;
        let before = names(&cluster).await;
        tokio::time::sleep(std::time::Duration::from_mins(7)).await;
        assert_eq!(names(&cluster).await, before, "seed {seed}: a pod has a double");
        let status = cluster.get(&path).await["status"].clone();
        let ready = status["readyReplicas"].as_u64().unwrap_or(0);
        assert_eq!(usize::try_from(ready).ok(), Some(3 - on_lost), "seed {seed}: {status}");
    }
    forget(&cluster).await;
    recovered(&cluster, &path, 3, "readyReplicas").await;
    let bounds = Bounds { most: 3, least: 0 };
    let checked = check_history(&cluster.store, bounds).await;
    checked.unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
}

/// A daemon stays on its node, however long that is silent.
async fn of_a_daemon_set(seed: u64) {
    let (cluster, node) = cluster(seed).await;
    cluster
        .create(DAEMON_SETS, &workload("log", "nginx:1", &json!({})))
        .await;
    lose(&cluster, &node).await;
    tokio::time::sleep(std::time::Duration::from_mins(7)).await;
    let pods = cluster.list(PODS).await;
    let lasting = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    assert_eq!((pods.len(), lasting.count()), (3, 3), "seed {seed}");
    let status = cluster.get(&format!("{DAEMON_SETS}/log")).await["status"].clone();
    // The lost node has a taint `NoSchedule` that daemons do not tolerate: they stay, but are not desired there.
    let counts = ["desiredNumberScheduled", "numberMisscheduled", "numberReady"].map(|count| status[count].clone());
    assert_eq!(counts, [2, 1, 2].map(|count| json!(count)), "seed {seed}");
    forget(&cluster).await;
    recovered(&cluster, &format!("{DAEMON_SETS}/log"), 2, "numberReady").await;
    let bounds = Bounds { most: 3, least: 0 };
    let checked = check_history(&cluster.store, bounds).await;
    checked.unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
}

/// Each lost pod counts once as failed, and is replaced once.
async fn of_a_job(seed: u64) {
    let mode = if seed.is_multiple_of(2) {
        "Indexed"
    } else {
        "NonIndexed"
    };
    let (cluster, node) = cluster(seed).await;
    let mut job = jobs::job(mode, "works");
    job["spec"]["backoffLimit"] = json!(6);
    cluster.create(jobs::JOBS, &job).await;
    lose(&cluster, &node).await;
    forget(&cluster).await;
    let status = jobs::ended(&cluster, "Complete").await;
    assert_eq!(status["succeeded"], 6, "seed {seed}: {status}");
    let failed = status["failed"].as_u64().unwrap_or(0);
    let all = jobs::history(&cluster.store, 3).await;
    assert_eq!(u64::try_from(all.len()).ok(), Some(6 + failed), "seed {seed}: {status}");
}

/// The Jobs of a `CronJob` continue after the loss, never concurrently where that is forbidden.
async fn of_a_cron_job(seed: u64) {
    let (cluster, node) = cluster(seed).await;
    let mut spec = jobs::job("NonIndexed", "works")["spec"].clone();
    spec["backoffLimit"] = json!(6);
    let tick = json!({ "metadata": { "name": "tick" }, "spec": {
        "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": { "spec": spec },
    } });
    cluster.create(jobs::CRON_JOBS, &tick).await;
    lose(&cluster, &node).await;
    let path = format!("{}/tick", jobs::CRON_JOBS);
    let succeeded = async || cluster.get(&path).await["status"]["lastSuccessfulTime"].to_string();
    let before = succeeded().await;
    forget(&cluster).await;
    let later = || async {
        let after = succeeded().await;
        if after == before || after == "null" {
            Err(after)
        } else {
            Ok(())
        }
    };
    cluster.eventually("a Job succeeds after the loss", later).await;
    let mut watch = cluster
        .store
        .watch(&Prefix::resource("batch", "jobs"), 0)
        .expect("a watch");
    let newest = cluster.store.revision();
    let mut unfinished = BTreeSet::new();
    while let Ok(told) = tokio::time::timeout(std::time::Duration::from_millis(1), watch.next()).await {
        let event = told.expect("a change");
        let job: Value = serde_json::from_slice(&event.entry.bytes).expect("a job");
        let conditions = job["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let finished = conditions.any(|one| one["type"] == "Complete" || one["type"] == "Failed");
        if finished || matches!(event.kind, EventKind::Delete { .. }) {
            unfinished.remove(&job["metadata"]["uid"].to_string());
        } else {
            unfinished.insert(job["metadata"]["uid"].to_string());
        }
        assert!(unfinished.len() <= 1, "seed {seed}: two Jobs at once");
        if event.entry.revision >= newest {
            break;
        }
    }
}

/// Pods without metrics do not cause a change of size.
async fn of_an_autoscaler(seed: u64) {
    let (cluster, node) = cluster(seed).await;
    cluster.load(200);
    let mut web = deployment("web", 1, "nginx:1");
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "100m" } });
    cluster.create(DEPLOYMENTS, &web).await;
    cluster.create(autoscaling::SCALERS, &autoscaling::scaler()).await;
    autoscaling::settled(&cluster, 4).await;
    lose(&cluster, &node).await;
    let before = autoscaling::sizes(&cluster.store).await;
    tokio::time::sleep(std::time::Duration::from_mins(4)).await;
    assert_eq!(autoscaling::sizes(&cluster.store).await, before, "seed {seed}");
    forget(&cluster).await;
    recovered(&cluster, &format!("{DEPLOYMENTS}/web"), 4, "availableReplicas").await;
    let sizes = autoscaling::sizes(&cluster.store).await;
    assert!(
        sizes.iter().skip(1).all(|size| (2..=5).contains(size)),
        "seed {seed}: {sizes:?}"
    );
}

/// Declares a test for each controller: the tests of our own crates have no parameters.
macro_rules! losses {
    ($($test:ident = $of:ident;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $test() {
            for seed in 0..seeds() {
                $of(seed).await;
            }
        }
    )*};
}

losses! {
    a_stateful_set_outlives_a_node_over_a_lossy_network = of_a_stateful_set;
    a_daemon_set_outlives_a_node_over_a_lossy_network = of_a_daemon_set;
    a_job_outlives_a_node_over_a_lossy_network = of_a_job;
    a_cron_job_outlives_a_node_over_a_lossy_network = of_a_cron_job;
    an_autoscaler_outlives_a_node_over_a_lossy_network = of_an_autoscaler;
}
