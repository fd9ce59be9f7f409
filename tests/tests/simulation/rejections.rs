//! Pods that their node does not take.

use std::time::Duration;

use serde_json::json;
use tests::cluster::Cluster;

use super::{DEPLOYMENTS, PODS, deployment};

#[tokio::test(start_paused = true)]
async fn pods_that_their_node_rejects_are_replaced_ever_more_slowly() {
    tests::logging();
    let cluster = Cluster::builder().nodes(1).start().await;
    let mut huge = deployment("huge", 2, "nginx:1");
    let spec = &mut huge["spec"]["template"]["spec"];
    spec["nodeName"] = json!("node-1");
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    cluster.create(DEPLOYMENTS, &huge).await;
    let rejected = |least: usize| {
        let cluster = &cluster;
        async move {
            let pods = cluster.list(PODS).await;
            let rejected = pods.iter().filter(|pod| pod["status"]["reason"] == "OutOfcpu");
            match rejected.count() {
                count if count >= least => Ok(()),
                _ => Err(pods.iter().map(|pod| pod["status"].clone()).collect::<Vec<_>>()),
            }
        }
    };
    cluster.eventually("they are tried again", || rejected(4)).await;
    // The clock stands still while any task runs: without pauses, a minute would bring hundreds.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let pods = cluster.list(PODS).await.len();
    assert!(pods <= 12, "{pods}");
    cluster.eventually("and they still are", || rejected(pods + 1)).await;
}
