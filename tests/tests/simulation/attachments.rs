//! CSI volumes on their way to nodes and from them; the test is the driver's external-attacher.

use serde_json::{Value, json};
use tests::cluster::Cluster;

use crate::{MERGE, PODS};

const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const VOLUME: &str = "kubernetes.io/csi/csi.example.com^vol-1";

/// A cluster of two nodes with a volume of a driver, and its claim.
async fn cluster() -> Cluster {
    let cluster = Cluster::builder().nodes(2).start().await;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "disk" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "csi.example.com", "volumeHandle": "vol-1" },
        },
    });
    cluster.create("/api/v1/persistentvolumes", &volume).await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "", "volumeName": "disk",
        },
    });
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    cluster.create(claims, &claim).await;
    cluster
        .eventually("the nodes are there", || async {
            let nodes = cluster.list("/api/v1/nodes").await.len();
            if nodes == 2 { Ok(()) } else { Err(nodes) }
        })
        .await;
    cluster
}

async fn run_on(cluster: &Cluster, name: &str, node: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "nginx:1" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
        },
    });
    cluster.create(PODS, &pod).await;
}

/// Waits for the attachment to a node, and returns its path.
async fn attachment(cluster: &Cluster, node: &str) -> String {
    let found = cluster
        .eventually("there is an attachment", || async {
            let all = cluster.list(ATTACHMENTS).await;
            let found = all.iter().find(|own| own["spec"]["nodeName"] == node);
            found.cloned().ok_or(all)
        })
        .await;
    assert_eq!(found["spec"]["attacher"], "csi.example.com");
    assert_eq!(found["spec"]["source"], json!({ "persistentVolumeName": "disk" }));
    format!(
        "{ATTACHMENTS}/{}",
        found["metadata"]["name"].as_str().unwrap_or_default()
    )
}

async fn patch(cluster: &Cluster, path: &str, body: &Value) {
    let patched = cluster.request("PATCH", path, MERGE, body).await;
    patched.expect("patched");
}

/// Waits until a node's status says whether the volume is attached.
async fn told(cluster: &Cluster, node: &str, wanted: &Value) {
    let path = format!("/api/v1/nodes/{node}");
    cluster
        .eventually("the node is told", || async {
            let status = cluster.get(&path).await["status"].clone();
            if status["volumesAttached"] == *wanted {
                Ok(())
            } else {
                Err(status)
            }
        })
        .await;
}

/// Waits for an event about a pod.
async fn event(cluster: &Cluster, pod: &str, reason: &str, message: &str) {
    cluster
        .eventually("the pod is told", || async {
            let events = cluster.list("/api/v1/namespaces/default/events").await;
            let is_it = |event: &Value| {
                event["involvedObject"]["name"] == pod && event["reason"] == reason && event["message"] == message
            };
            if events.iter().any(is_it) { Ok(()) } else { Err(events) }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pods_from_node_to_node() {
    tests::logging();
    let mut cluster = cluster().await;
    run_on(&cluster, "first", "node-1").await;
    let first = attachment(&cluster, "node-1").await;
    let held = json!({ "metadata": { "finalizers": ["external-attacher/csi-example-com"] } });
    patch(&cluster, &first, &held).await;
    let attached = json!({ "status": { "attached": true } });
    patch(&cluster, &format!("{first}/status"), &attached).await;
    told(&cluster, "node-1", &json!([{ "name": VOLUME, "devicePath": "" }])).await;
    let succeeded = "AttachVolume.Attach succeeded for volume \"disk\" ";
    event(&cluster, "first", "SuccessfulAttachVolume", succeeded).await;

    run_on(&cluster, "second", "node-2").await;
    let refused = "Multi-Attach error for volume \"disk\" Volume is already used by pod(s) first";
    event(&cluster, "second", "FailedAttachVolume", refused).await;
    // What the objects say is enough.
    cluster.restart_controllers();

    let path = format!("{PODS}/first");
    let deleted = cluster.request("DELETE", &path, "application/json", &json!({})).await;
    deleted.expect("deleted");
    told(&cluster, "node-1", &Value::Null).await;
    cluster
        .eventually("the attacher is asked to detach", || async {
            let left = cluster.get(&first).await;
            if left["metadata"]["deletionTimestamp"].is_string() {
                Ok(())
            } else {
                Err(left)
            }
        })
        .await;
    assert_eq!(cluster.list(ATTACHMENTS).await.len(), 1, "it is still attached");
    patch(&cluster, &first, &json!({ "metadata": { "finalizers": null } })).await;

    let second = attachment(&cluster, "node-2").await;
    let error = json!({ "status": { "attached": false, "attachError": { "message": "no such disk" } } });
    patch(&cluster, &format!("{second}/status"), &error).await;
    let failed = "AttachVolume.Attach failed for volume \"disk\" : no such disk";
    event(&cluster, "second", "FailedAttachVolume", failed).await;
    let attached = json!({ "status": { "attached": true, "attachError": null } });
    patch(&cluster, &format!("{second}/status"), &attached).await;
    told(&cluster, "node-2", &json!([{ "name": VOLUME, "devicePath": "" }])).await;
}
