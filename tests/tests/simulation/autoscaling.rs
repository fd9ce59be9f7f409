//! Autoscalers over a lossy network, with restarts of their controller.

use serde_json::{Value, json};
use store::{EventKind, Prefix, Store};
use tests::cluster::Cluster;

use crate::{DEPLOYMENTS, deployment, seeds};

pub(crate) const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

pub(crate) fn scaler() -> Value {
    json!({
        "metadata": { "name": "web" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "minReplicas": 2, "maxReplicas": 5,
            "metrics": [{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 },
            } }],
        },
    })
}

/// Waits until the autoscaler has made so many replicas, and they are all available.
pub(crate) async fn settled(cluster: &Cluster, replicas: i64) {
    cluster
        .eventually(&format!("there are {replicas} replicas"), || async {
            let web = cluster.get(&format!("{DEPLOYMENTS}/web")).await;
            let scaler = cluster.get(&format!("{SCALERS}/web")).await["status"].clone();
            let done = web["spec"]["replicas"] == replicas
                && web["status"]["availableReplicas"] == replicas
                && scaler["desiredReplicas"] == replicas;
            if done {
                Ok(())
            } else {
                Err((web["spec"]["replicas"].clone(), web["status"].clone(), scaler))
            }
        })
        .await;
}

/// The numbers of replicas that the Deployment was ever asked for, one after the other.
pub(crate) async fn sizes(store: &Store) -> Vec<i64> {
    let mut watch = store
        .watch(&Prefix::resource("apps", "deployments"), 0)
        .expect("a watch");
    let mut sizes = Vec::new();
    while let Ok(told) = tokio::time::timeout(std::time::Duration::from_millis(1), watch.next()).await {
        let event = told.expect("a change");
        let web: Value = serde_json::from_slice(&event.entry.bytes).expect("a deployment");
        sizes.extend(
            web["spec"]["replicas"]
                .as_i64()
                .filter(|_| !matches!(event.kind, EventKind::Delete { .. })),
        );
        if event.entry.revision >= store.revision() {
            break;
        }
    }
    sizes.dedup();
    sizes
}

async fn one_seed(seed: u64) {
    let mut cluster = Cluster::builder().nodes(2).lossy(seed).start().await;
    cluster.load(0);
    let mut web = deployment("web", 1, "nginx:1");
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "100m" } });
    cluster.create(DEPLOYMENTS, &web).await;
    cluster.create(SCALERS, &scaler()).await;
    settled(&cluster, 2).await;
    let forgetful = seed.is_multiple_of(4);
    // Four replicas of 100m have half of it to do each.
    for (load, replicas) in [(200, 4), (2_000, 5), (0, 2)] {
        cluster.load(load);
        if forgetful {
            tokio::time::sleep(std::time::Duration::from_secs(20)).await;
            cluster.restart_controllers();
        }
        settled(&cluster, replicas).await;
    }
    let sizes = sizes(&cluster.store).await;
    // From above, the stabilization window ends at once: no metrics meanwhile asked for more.
    let rises = sizes.iter().position(|size| *size == 5).expect("the most");
    let (up, down) = sizes.split_at(rises);
    assert!(
        up.is_sorted() && down.is_sorted_by(|a, b| a >= b),
        "seed {seed}: {sizes:?}"
    );
    assert!(
        sizes.iter().skip(1).all(|size| (2..=5).contains(size)),
        "seed {seed}: {sizes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_keeps_its_bounds_over_a_lossy_network() {
    for seed in 0..seeds() {
        one_seed(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_that_no_api_serves_are_told_in_the_condition() {
    let cluster = Cluster::builder().nodes(1).start().await;
    cluster.create(DEPLOYMENTS, &deployment("web", 1, "nginx:1")).await;
    let target = json!({ "type": "Value", "value": "10" });
    let average = json!({ "type": "AverageValue", "averageValue": "10" });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "name": "front" });
    let custom =
        "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    let external = "unable to fetch metrics from external metrics API: the server could not find the requested resource \
                    (get lag.external.metrics.k8s.io)";
    for (metric, reason, message) in [
        (
            json!({ "type": "Object", "object": { "metric": { "name": "hits" }, "describedObject": service, "target": target } }),
            "FailedGetObjectMetric",
            format!("unable to get metric hits: Service on default front/{custom}"),
        ),
        (
            json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": average } }),
            "FailedGetPodsMetric",
            format!("unable to get metric hits: {custom}"),
        ),
        (
            json!({ "type": "External", "external": { "metric": { "name": "lag" }, "target": target } }),
            "FailedGetExternalMetric",
            format!("unable to get external metric default/lag/nil: {external}"),
        ),
    ] {
        let mut scaler = scaler();
        scaler["spec"]["minReplicas"] = json!(1);
        scaler["spec"]["metrics"] = json!([metric]);
        cluster.create(SCALERS, &scaler).await;
        let wanted = format!("the HPA was unable to compute the replica count: {message}");
        cluster
            .eventually(reason, || async {
                let status = cluster.get(&format!("{SCALERS}/web")).await["status"].clone();
                let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
                let told =
                    |one: &Value| one["type"] == "ScalingActive" && one["reason"] == reason && one["message"] == wanted;
                if conditions.iter().any(told) {
                    Ok(())
                } else {
                    Err((wanted.clone(), status))
                }
            })
            .await;
        let path = format!("{SCALERS}/web");
        let deleted = cluster.request("DELETE", &path, "application/json", &json!({})).await;
        deleted.expect("deleted");
    }
}
