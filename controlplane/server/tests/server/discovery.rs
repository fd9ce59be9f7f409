//! Discovery and OpenAPI for old and new clients.

use crate::support::Api;
use http::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn discovery_is_what_each_client_asks_for() {
    let api = Api::start().await;
    let ask = async |path: &str, accept: &str| api.request(Method::GET, path, &[("accept", accept)], "").await;
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let new = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (accept, content_type, version) in [
        (old, "application/json", "v1"),
        (new, aggregated, "apidiscovery.k8s.io/v2"),
    ] {
        let answer = ask("/apis", accept).await;
        assert_eq!(answer.headers["content-type"], content_type);
        assert_eq!(answer.json()["apiVersion"], version);
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
    let told = api.get("/livez?verbose&exclude=ping&exclude=b&exclude=a").await.text();
    assert!(
        told.starts_with("[+]ping excluded: ok\n[+]log ok\n[+]etcd ok\n[+]poststarthook/"),
        "{told}"
    );
    let end = "warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nlivez check passed\n";
    assert!(told.ends_with(end), "{told}");
    for path in ["/livez/etcd", "/readyz/poststarthook/rbac/bootstrap-roles"] {
        assert_eq!(api.get(path).await.text(), "ok", "{path}");
    }
    assert_eq!(api.get("/livez/nothing").await.code, 404);
    let late = api.get("/version?timeout=invalid").await;
    let message = "invalid timeout specified in the request URL - time: invalid duration \"invalid\"";
    assert_eq!((late.code.as_u16(), &late.json()["message"]), (400, &json!(message)));
    assert_eq!(api.get("/version?timeout=3m").await.code, 200);
    let metrics = api.get("/metrics").await;
    assert_eq!(
        metrics.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    assert!(metrics.text().contains("# TYPE apiserver_request_total counter\n"));
    api.get("/healthz").await;
    let slis = api.get("/metrics/slis").await.text();
    for line in [
        "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"ping\",type=\"healthz\",status=\"success\"} 1\n",
    ] {
        assert!(slis.contains(line), "{line} in {slis}");
    }
    // Namespaces are deleted one by one.
    let resources = api.get("/api/v1").await.json();
    let verbs = |name: &str| {
        let all = resources["resources"].as_array().unwrap();
        all.iter().find(|row| row["name"] == name).unwrap()["verbs"].clone()
    };
    assert!(
        !verbs("namespaces")
            .as_array()
            .unwrap()
            .contains(&json!("deletecollection"))
    );
    assert!(verbs("nodes").as_array().unwrap().contains(&json!("deletecollection")));
    assert_eq!(api.delete("/api/v1/namespaces", "").await.code.as_u16(), 405);
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

#[tokio::test]
async fn documents_come_in_every_encoding() {
    let api = Api::start().await;
    let get = async |path: &str, accept: &str| api.request(Method::GET, path, &[("accept", accept)], "").await;
    let protobuf = get(
        "/openapi/v3/api/v1",
        "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    )
    .await;
    assert_eq!(
        protobuf.headers["content-type"],
        "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
    );
    let json = get("/openapi/v3/api/v1", "*/*").await;
    assert_eq!(json.headers["content-type"], "application/json");
    assert_eq!(
        json.headers["etag"], protobuf.headers["etag"],
        "one document has one tag"
    );
    assert_ne!(json.bytes, protobuf.bytes);
    for path in ["/openapi/v3/apis", "/openapi/v3/version"] {
        let document = get(path, "*/*").await.json();
        assert!(document["components"]["schemas"].is_object(), "{path}");
    }
    for path in ["/openapi/v3/api/v1", "/openapi/v2"] {
        let refused = get(path, "application/xml").await;
        assert_eq!((refused.code.as_u16(), refused.bytes.len()), (406, 0), "{path}");
    }

    let parameters = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for path in ["/api", "/apis"] {
        let json = get(path, &format!("application/json{parameters}")).await;
        let protobuf = get(path, &format!("application/vnd.kubernetes.protobuf{parameters}")).await;
        assert_eq!(
            protobuf.headers["content-type"].to_str().unwrap(),
            format!("application/vnd.kubernetes.protobuf{parameters}")
        );
        let decoded = api::protobuf::decode(&protobuf.bytes).unwrap().json;
        // Protobuf leaves empty groups out.
        let json: Value = serde_json::from_str(&json.text().replace("\"group\":\"\",", "")).unwrap();
        assert_eq!(decoded, json, "{path}");
        let yaml = get(path, "application/yaml").await;
        assert_eq!(yaml.headers["content-type"], "application/yaml");
        let yaml: Value = serde_yaml::from_slice(&yaml.bytes).unwrap();
        assert_eq!(yaml, api.get(path).await.json());
    }
}

#[tokio::test]
async fn pages_for_people_say_what_runs() {
    let api = Api::start().await;
    let page = api.get("/statusz").await;
    assert_eq!(page.headers["content-type"], "text/plain; charset=utf-8");
    let text = page.text();
    assert!(text.starts_with("\nkube-apiserver statusz\nWarning: "), "{text}");
    for line in [
        "Up: 0 hr 00 min ",
        "Binary version: 1.36.0",
        "Emulation version: 1.36\n",
        "Paths: /flagz ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let ask = async |accept: &str| api.request(Method::GET, "/flagz", &[("accept", accept)], "").await;
    for accept in ["application/json, */*", "text/plain;charset=UTF-8", "text/*;q=0.5"] {
        let page = ask(accept).await;
        assert_eq!(page.code, 200, "{accept}");
        assert!(page.text().starts_with("\nkube-apiserver flagz\nWarning: "), "{accept}");
    }
    let refused = ask("application/json").await;
    let because = "media type not acceptable, must be: text/plain\n";
    assert_eq!((refused.code.as_u16(), refused.text().as_str()), (406, because));
}

#[tokio::test]
async fn pages_for_people_have_a_form_for_programs() {
    let api = Api::start().await;
    let ask = async |path: &str, accept: &str| api.request(Method::GET, path, &[("accept", accept)], "").await;
    let page = ask("/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz").await;
    assert_eq!(page.headers["content-type"], "application/json");
    let status = page.json();
    assert_eq!(status["kind"], "Statusz");
    assert_eq!(status["apiVersion"], "config.k8s.io/v1beta1");
    assert_eq!(status["metadata"], json!({"name": "kube-apiserver"}));
    assert_eq!(status["emulationVersion"], "1.36");
    assert!(
        status["uptimeSeconds"].is_i64() && status["paths"][0] == "/flagz",
        "{status}"
    );
    assert_eq!(page.warnings(), Vec::<String>::new());
    let page = ask("/flagz", "application/yaml; as=Flagz; g=config.k8s.io; v=v1alpha1, */*").await;
    let old = "299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\"";
    assert_eq!(page.warnings(), [old]);
    assert_eq!(page.headers["content-type"], "application/yaml");
    let flags: Value = serde_yaml::from_slice(&page.bytes).unwrap();
    assert_eq!(flags["apiVersion"], "config.k8s.io/v1alpha1");
    for accept in [
        "application/json;v=v1beta1;g=config.k8s.io",
        "application/json;v=v1;g=config.k8s.io;as=Flagz",
        "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
    ] {
        assert_eq!(ask("/flagz", accept).await.code, 406, "{accept}");
    }
}

#[tokio::test]
async fn resources_tell_the_form_in_which_they_are_stored() {
    let api = Api::start().await;
    // Hashes that every Kubernetes cluster has.
    for (path, name, expected) in [
        ("/api/v1", "pods", json!("xPOwRZ+Yhw8=")),
        ("/api/v1", "bindings", Value::Null),
        ("/api/v1", "pods/status", Value::Null),
        (
            "/apis/apiextensions.k8s.io/v1",
            "customresourcedefinitions",
            json!("jfWCUB31mvA="),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1",
            "mutatingadmissionpolicies",
            json!("LYmCf+UMVdg="),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1",
            "mutatingadmissionpolicybindings",
            json!("90V5FRZZ3Zg="),
        ),
    ] {
        let document = api.get(path).await.json();
        let all = document["resources"].as_array().unwrap();
        let row = all.iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row["storageVersionHash"], expected, "{name}");
    }
}
