//! What discovery and OpenAPI say to old and new clients.

use crate::support::Api;
use http::Method;
use serde_json::json;

#[tokio::test]
async fn discovery_is_what_each_client_asks_for() {
    let api = Api::start().await;
    let ask = async |path: &str, accept: &str| api.request(Method::GET, path, &[("accept", accept)], "").await;
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let new = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    for (accept, version) in [(old, "v2beta1"), (new, "v2")] {
        let answer = ask("/apis", accept).await;
        let kind = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        assert_eq!(answer.headers["content-type"], kind.as_str());
        assert_eq!(answer.json()["apiVersion"], format!("apidiscovery.k8s.io/{version}"));
        let etag = answer.headers["etag"].to_str().unwrap();
        let again = api
            .request(Method::GET, "/apis", &[("accept", accept), ("if-none-match", etag)], "")
            .await;
        assert_eq!((again.code.as_u16(), again.bytes.len()), (304, 0));
    }
    let core = ask("/api", new).await.json();
    let pods = core["items"][0]["versions"][0]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["resource"] == "pods");
    let eviction = json!({"subresource": "eviction", "verbs": ["create"],
        "responseKind": {"group": "policy", "version": "v1", "kind": "Eviction"}});
    assert!(pods.unwrap()["subresources"].as_array().unwrap().contains(&eviction));
    assert_eq!(ask("/apis", "application/json").await.json()["kind"], "APIGroupList");
    assert_eq!(ask("/api", "*/*").await.json()["versions"], json!(["v1"]));
    let legacy = ask("/apis/apps/v1", "application/json").await.json();
    let names: Vec<_> = legacy["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "controllerrevisions",
            "daemonsets",
            "daemonsets/status",
            "deployments",
            "deployments/scale",
            "deployments/status",
            "replicasets",
            "replicasets/scale",
            "replicasets/status",
            "statefulsets",
            "statefulsets/scale",
            "statefulsets/status"
        ]
    );
    assert_eq!(api.get("/version").await.json()["minor"], "36");
    assert_eq!(api.get("/readyz").await.text(), "ok");
    assert!(
        api.get("/readyz?verbose")
            .await
            .text()
            .ends_with("readyz check passed\n")
    );
    assert!(
        api.get("/").await.json()["paths"]
            .as_array()
            .unwrap()
            .contains(&json!("/apis/apps/v1"))
    );
}

#[tokio::test]
async fn openapi_is_there_for_old_and_new_clients() {
    let api = Api::start().await;
    let index = api.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = api.get(url).await;
    assert!(document.json()["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    assert_eq!(document.headers["cache-control"], "public, immutable");
    assert!(document.headers["expires"].to_str().unwrap().ends_with(" GMT"));
    let old = api.get("/openapi/v3/apis/apps/v1?hash=OLD").await;
    assert_eq!(
        (old.code.as_u16(), old.headers["location"].to_str().unwrap()),
        (301, url)
    );
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = api
        .request(Method::GET, "/openapi/v2", &[("accept", protobuf)], "")
        .await;
    assert_eq!(
        answer.headers["content-type"],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(answer.bytes.len() > 100_000);
    let etag = answer.headers["etag"].to_str().unwrap().to_owned();
    let known = [("accept", protobuf), ("if-none-match", etag.as_str())];
    let answer = api.request(Method::GET, "/openapi/v2", &known, "").await;
    assert_eq!((answer.code.as_u16(), answer.bytes.len()), (304, 0));
    let zipped = api
        .request(Method::GET, "/openapi/v2", &[("accept-encoding", "gzip")], "")
        .await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert_ne!(zipped.headers["etag"], etag.as_str());
    let definitions = api.get("/openapi/v2").await.json();
    assert!(definitions["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
}
