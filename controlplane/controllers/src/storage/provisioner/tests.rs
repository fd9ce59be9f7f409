use std::sync::{Mutex, PoisonError};

use controlplane_plan::storage::provision::NAME;
use serde_json::from_value;

use super::*;
use crate::machinery::driver::testing::context_on;

/// Content of a server, and the changes that were requested.
#[derive(Default)]
struct Server {
    has_claim: bool,
    has_volume: bool,
    asked: Vec<String>,
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str) -> (u16, Value) {
        let gone = (
            404,
            json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "gone" }),
        );
        if *method != Method::GET {
            self.asked.push(format!("{method} {path}"));
        }
        match (method.as_str(), path.rsplit('/').next().unwrap_or_default()) {
            ("GET", "data") if self.has_claim => (200, claim()),
            ("GET", "pvc-u") if self.has_volume => (200, json!({ "metadata": { "name": "pvc-u" } })),
            ("GET", _) => gone,
            ("PUT", _) => (200, json!({ "path": "/var/lib/pvc-u" })),
            ("POST", _) => (500, json!({ "kind": "Status", "code": 500, "message": "no" })),
            _ => (200, json!({})),
        }
    }
}

fn claim() -> Value {
    json!({
        "metadata": { "name": "data", "namespace": "ns", "uid": "u", "annotations": {
            SELECTED_NODE: "n1", "volume.kubernetes.io/storage-provisioner": NAME,
        } },
        "spec": {
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn context(server: &Arc<Mutex<Server>>) -> Context {
    let server = server.clone();
    let caches = Caches::new();
    let node = json!({ "metadata": { "name": "n1", "labels": { "kubernetes.io/hostname": "n1" } } });
    caches.nodes.replace(vec![from_value(node).unwrap()], 1, 1);
    let class = json!({
        "metadata": { "name": "local" }, "provisioner": NAME, "volumeBindingMode": "WaitForFirstConsumer",
    });
    caches.storage_classes.replace(vec![from_value(class).unwrap()], 1, 1);
    context_on(caches, move |method, uri, _| {
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        server.answer(method, uri.path())
    })
}

#[tokio::test]
async fn a_directory_whose_claim_went_is_removed_unless_a_volume_names_it() {
    let server = Arc::new(Mutex::new(Server {
        has_claim: true,
        ..Server::default()
    }));
    let context = context(&server);
    let lock = || server.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = || std::mem::take(&mut lock().asked);
    let key = Key::new("ns", "data");
    let directory = "/api/v1/nodes/n1/proxy/local-path/pvc-u";
    let left = Directory {
        node: "n1".to_owned(),
        volume: "pvc-u".to_owned(),
    };
    let first = make(&context, &key, true, None).await;
    assert_eq!(first, Outcome::AgainAfter(left.clone()));
    assert_eq!(
        asked(),
        [format!("PUT {directory}"), "POST /api/v1/persistentvolumes".to_owned()]
    );
    lock().has_claim = false;
    assert_eq!(make(&context, &key, false, Some(left.clone())).await, Outcome::Done);
    assert_eq!(asked(), [format!("DELETE {directory}")]);
    lock().has_volume = true;
    assert_eq!(make(&context, &key, false, Some(left)).await, Outcome::Done);
    assert!(asked().is_empty(), "the volume decides");
}

#[test]
fn a_claim_is_told_that_another_driver_expands_its_volume() {
    let check = |provisioner: &str, source: &str, held: &str, expected: bool| {
        let caches = Caches::new();
        let mut claim = claim();
        claim["spec"]["volumeName"] = "v".into();
        claim["status"] = json!({ "phase": "Bound", "capacity": { "storage": held } });
        caches.claims.replace(vec![from_value(claim).unwrap()], 1, 1);
        let volume = json!({
            "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/provisioned-by": provisioner } },
            "spec": {
                "claimRef": { "name": "data", "namespace": "ns", "uid": "u" },
                source: { "driver": "example.com/d" },
            },
        });
        caches.volumes.replace(vec![from_value(volume).unwrap()], 1, 1);
        let note = awaited(&caches, &Key::new("ns", "data"));
        let told = note.is_some_and(|note| note.reason == "ExternalExpanding");
        assert_eq!(told, expected, "{provisioner} {source} {held}");
    };
    check("csi.example.com", "csi", "500Mi", true);
    check("csi.example.com", "csi", "1Gi", false);
    check("example.com/d", "flexVolume", "500Mi", false);
    check(NAME, "hostPath", "500Mi", false);
}
