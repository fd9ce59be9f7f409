//! Pods that their node does not take, and a node that its agent may not create.

use std::time::Duration;

use serde_json::json;
use tests::cluster::Cluster;

use super::workloads::{STATEFUL_SETS, workload};
use super::{DEPLOYMENTS, PODS, deployment};

const EVENTS: &str = "/api/v1/namespaces/default/events";
const NODES: &str = "/api/v1/nodes";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

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

#[tokio::test(start_paused = true)]
async fn a_stateful_pod_that_its_node_rejects_is_replaced_ever_more_slowly() {
    tests::logging();
    let cluster = Cluster::builder().nodes(1).start().await;
    let mut huge = workload("huge", "nginx:1", &json!({"serviceName": "huge"}));
    let spec = &mut huge["spec"]["template"]["spec"];
    spec["nodeName"] = json!("node-1");
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    cluster.create(STATEFUL_SETS, &huge).await;
    let replaced = || async {
        let events = cluster.list(EVENTS).await;
        let deleted = events.iter().filter(|event| event["reason"] == "SuccessfulDelete");
        deleted.filter_map(|event| event["count"].as_u64()).sum::<u64>()
    };
    let at_least = async |least: u64| match replaced().await {
        count if count >= least => Ok(()),
        count => Err((count, cluster.list(PODS).await)),
    };
    cluster.eventually("it is tried again", || at_least(2)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let count = replaced().await;
    assert!(count <= 8, "{count}");
    cluster.eventually("and it still is", || at_least(count + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_may_not_create_its_node_takes_the_one_that_exists() {
    tests::logging();
    let mut cluster = Cluster::builder().nodes(0).start().await;
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    cluster.create(NODES, &node("given")).await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-nodes"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "reason": "Forbidden"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-nodes"},
        "spec": {"policyName": "no-nodes", "validationActions": ["Deny"]},
    });
    for (kind, object) in [
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", binding),
    ] {
        cluster.create(&format!("{ADMISSION}/{kind}"), &object).await;
    }
    let refused = || async {
        match cluster.request("POST", NODES, "application/json", &node("other")).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            other => Err(other),
        }
    };
    cluster.eventually("nodes may not be created", refused).await;
    cluster.add_node("given");
    let ready = || async {
        let found = cluster.get(&format!("{NODES}/given")).await;
        let conditions = found["status"]["conditions"].as_array();
        let is_ready = |one: &serde_json::Value| one["type"] == "Ready" && one["status"] == "True";
        let ready = conditions.is_some_and(|all| all.iter().any(is_ready));
        ready.then_some(()).ok_or(found)
    };
    cluster.eventually("the node is ready", ready).await;
}
