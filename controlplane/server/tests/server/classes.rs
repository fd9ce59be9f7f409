//! Classes of claims, Ingresses and pods.

use std::time::Duration;

use crate::support::{Api, pod};
use http::StatusCode;
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn claim(name: &str, size: &str) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

async fn made(api: &Api, path: &str, object: &Value) -> Value {
    let made = api.post(path, object).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    made.json()
}

async fn storage_class(api: &Api, name: &str, default: bool, grows: bool) {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": default.to_string()});
    let class = json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "p",
        "allowVolumeExpansion": grows});
    made(api, "/apis/storage.k8s.io/v1/storageclasses", &class).await;
}

#[tokio::test]
async fn claims_get_the_default_class_and_grow_where_it_lets_them() {
    let api = Api::start().await;
    let first = made(&api, CLAIMS, &claim("first", "1Gi")).await;
    assert_eq!(
        first["spec"]["storageClassName"], "skiff-local",
        "every cluster has this one"
    );
    let not = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "false"}}});
    let own = api.patch(
        "/apis/storage.k8s.io/v1/storageclasses/skiff-local",
        "merge-patch+json",
        &not,
    );
    assert_eq!(own.await.code, StatusCode::OK);
    storage_class(&api, "fast", false, true).await;
    let bare = made(&api, CLAIMS, &claim("bare", "1Gi")).await;
    assert_eq!(bare["spec"]["storageClassName"], Value::Null);
    assert_eq!(bare["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let attributes = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "gold"},
        "driverName": "disk.example.com", "parameters": {"iops": "1"}});
    let attributes = made(&api, "/apis/storage.k8s.io/v1/volumeattributesclasses", &attributes).await;
    assert_eq!(
        attributes["metadata"]["finalizers"],
        json!(["kubernetes.io/vac-protection"])
    );
    storage_class(&api, "usual", true, true).await;
    let classed = made(&api, CLAIMS, &claim("classed", "1Gi")).await;
    assert_eq!(classed["spec"]["storageClassName"], "usual");

    let grow = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let path = format!("{CLAIMS}/classed");
    let early = api.patch(&path, "merge-patch+json", &grow).await;
    assert_eq!(early.code, StatusCode::UNPROCESSABLE_ENTITY, "{}", early.text());
    let words =
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    assert!(early.message().contains(words), "{}", early.text());
}

#[tokio::test]
async fn a_cluster_gets_its_storage_class_once_and_may_have_other_ones() {
    let api = Api::start().await;
    let all = "/apis/storage.k8s.io/v1/storageclasses";
    // The manifest of Rancher's provisioner.
    let other = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local-path"},
        "provisioner": "rancher.io/local-path", "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
    made(&api, all, &other).await;
    let own = format!("{all}/skiff-local");
    assert_eq!(api.delete(&own, "").await.code, StatusCode::OK);
    api.server.bootstrap().await.unwrap();
    assert_eq!(api.get(&own).await.code, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_older_clusters_storage_class_is_left_alone() {
    let api = Api::start().await;
    let all = "/apis/storage.k8s.io/v1/storageclasses";
    assert_eq!(api.delete(&format!("{all}/skiff-local"), "").await.code, StatusCode::OK);
    let mark = store::Key::new("skiff", "given", "", "skiff-local").unwrap();
    let entry = api.store.get(&mark).unwrap();
    let write = store::Write::Delete {
        key: mark.clone(),
        expected: None,
        last: store::Value::parse(entry.bytes.to_vec()).unwrap(),
    };
    api.store.commit(write).await.unwrap();
    let older = json!({"metadata": {"name": "local-path"}, "provisioner": "skiff.dev/local-path"});
    made(&api, all, &older).await;
    api.server.bootstrap().await.unwrap();
    let names = api.get(all).await.json();
    let names = names["items"].as_array().unwrap().iter();
    let names: Vec<&Value> = names.map(|class| &class["metadata"]["name"]).collect();
    assert_eq!(names, ["local-path"]);
    assert!(api.store.get(&mark).is_some());
}

#[tokio::test]
async fn ingresses_get_the_default_class() {
    let api = Api::start().await;
    let annotations = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class =
        json!({"metadata": {"name": "usual", "annotations": annotations}, "spec": {"controller": "a.example/b"}});
    made(&api, "/apis/networking.k8s.io/v1/ingressclasses", &class).await;
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}});
    let made = made(
        &api,
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
        &ingress,
    )
    .await;
    assert_eq!(made["spec"]["ingressClassName"], "usual");
}

#[tokio::test]
async fn a_runtime_class_must_exist() {
    let api = Api::start().await;
    let mut special = pod("p");
    special["spec"]["runtimeClassName"] = json!("none");
    let refused = api.post("/api/v1/namespaces/default/pods", &special).await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN, "{}", refused.text());
    assert_eq!(
        refused.message(),
        "pods \"p\" is forbidden: pod rejected: RuntimeClass \"none\" not found"
    );
}

#[tokio::test]
async fn claims_of_devices_of_others_need_a_label_of_their_namespace() {
    let api = Api::start().await;
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = json!({"metadata": {"name": "a"}, "spec": {"devices": {"requests": [
        {"name": "d", "exactly": {"deviceClassName": "gpu", "adminAccess": true}},
    ]}}});
    let refused = api.post(path, &claim).await;
    let because = "ResourceClaim.resource.k8s.io \"a\" is invalid: spec.devices.requests[0].adminAccess: Forbidden: admin \
                   access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing \
                   namespace";
    assert_eq!((refused.code.as_u16(), refused.message().as_str()), (422, because));
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    let labeled = api
        .patch("/api/v1/namespaces/default", "merge-patch+json", &label)
        .await;
    assert_eq!(labeled.code, StatusCode::OK, "{}", labeled.text());
    made(&api, path, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn the_server_dates_the_phase_of_a_volume() {
    let api = Api::start().await;
    let volume = json!({"metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"},
    }});
    let volume = made(&api, "/api/v1/persistentvolumes", &volume).await;
    let begun = &volume["status"]["lastPhaseTransitionTime"];
    assert_eq!(*begun, volume["metadata"]["creationTimestamp"]);
    tokio::time::advance(Duration::from_mins(1)).await;
    let since = async |status: Value| {
        let path = "/api/v1/persistentvolumes/v/status";
        let answer = api.patch(path, "merge-patch+json", &json!({ "status": status })).await;
        assert_eq!(answer.code, StatusCode::OK, "{}", answer.text());
        answer.json()["status"]["lastPhaseTransitionTime"].clone()
    };
    assert_eq!(
        since(json!({"message": "m", "lastPhaseTransitionTime": null})).await,
        *begun
    );
    assert_ne!(since(json!({"phase": "Available"})).await, *begun);
    let told = json!("2030-01-01T00:00:00Z");
    assert_eq!(
        since(json!({"phase": "Released", "lastPhaseTransitionTime": told})).await,
        told
    );
}
