//! OpenAPI of kinds that objects define.

use http::Method;
use serde_json::{Value, json};

use crate::definitions::{DEFINITIONS, tabs};
use crate::support::Api;

const PATH: &str = "apis/example.com/v1";

async fn url(api: &Api) -> Option<String> {
    let index = api.get("/openapi/v3").await.json();
    let url = index["paths"][PATH]["serverRelativeURL"].as_str();
    url.map(str::to_owned)
}

fn without_own(mut schema: Value) -> Value {
    let members = schema.as_object_mut().unwrap();
    members.remove("x-kubernetes-group-version-kind");
    members.remove("x-kubernetes-selectable-fields");
    let properties = members["properties"].as_object_mut().unwrap();
    for name in ["apiVersion", "kind", "metadata"] {
        assert!(properties.remove(name).unwrap()["description"].is_string(), "{name}");
    }
    schema
}

#[tokio::test]
async fn a_definition_is_described_as_soon_as_it_is_there() {
    let api = Api::start().await;
    assert_eq!(url(&api).await, None);
    let apps = api.get("/openapi/v3").await.json()["paths"]["apis/apps/v1"].clone();
    assert_eq!(api.post(DEFINITIONS, &tabs()).await.code, 201);
    let first = url(&api).await.unwrap();
    let document = api.get(&first).await.json();
    let schemas = &document["components"]["schemas"];
    let own = &schemas["com.example.v1.Tab"];
    assert_eq!(
        own["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "version": "v1", "kind": "Tab"}])
    );
    assert_eq!(
        without_own(own.clone()),
        tabs()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    );
    assert_eq!(
        own["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].is_object());
    for name in ["com.example.v1.Tab", "com.example.v1.TabList"] {
        let fields = &schemas[name]["x-kubernetes-selectable-fields"];
        assert_eq!(fields, &json!([{"fieldPath": "spec.color"}]), "{name}");
    }
    let items = &schemas["com.example.v1.TabList"]["properties"]["items"]["items"];
    assert_eq!(items["$ref"], "#/components/schemas/com.example.v1.Tab");
    let object = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/tabs/{name}"];
    let patches: Vec<&String> = object["patch"]["requestBody"]["content"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        patches,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
    assert!(document["paths"]["/apis/example.com/v1/namespaces/{namespace}/tabs/{name}/scale"].is_object());
    // Unchanged documents are not downloaded again.
    assert_eq!(api.get("/openapi/v3").await.json()["paths"]["apis/apps/v1"], apps);

    let mut changed = api.get(&format!("{DEFINITIONS}/tabs.example.com")).await.json();
    let schema = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["description"] = json!("A tab.");
    assert_eq!(
        api.put(&format!("{DEFINITIONS}/tabs.example.com"), &changed).await.code,
        200
    );
    let second = url(&api).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(api.get(&first).await.code, 301);
    let document = api.get(&second).await.json();
    assert_eq!(
        document["components"]["schemas"]["com.example.v1.Tab"]["description"],
        "A tab."
    );
}

#[tokio::test]
async fn the_older_document_says_what_old_clients_can_bear() {
    let api = Api::start().await;
    let mut definition = tabs();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["maybe"] = json!({"type": "string", "nullable": true});
    schema["properties"]["spec"]["properties"]["one"] =
        json!({"type": "string", "anyOf": [{"pattern": "a"}, {"pattern": "b"}]});
    schema["properties"]["spec"]["required"] = json!(["maybe"]);
    schema["properties"]["inner"] = json!({
        "type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}},
    });
    let made = api.post(DEFINITIONS, &definition).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let document = api.get("/openapi/v2").await.json();
    let own = &document["definitions"]["com.example.v1.Tab"];
    let spec = &own["properties"]["spec"];
    assert_eq!(spec["properties"]["maybe"], json!({}));
    assert_eq!(spec["properties"]["one"], json!({"type": "string"}));
    assert_eq!(
        spec["properties"]["any"],
        json!({"x-kubernetes-preserve-unknown-fields": true})
    );
    assert_eq!(spec["properties"]["size"], json!({"type": "integer", "default": 3}));
    assert_eq!(spec.get("required"), None);
    assert_eq!(own["properties"]["inner"]["required"], json!(["kind", "apiVersion"]));
    assert_eq!(
        own["properties"]["metadata"]["$ref"],
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(
        document["definitions"]["com.example.v1.TabList"]["properties"]["items"]["items"]["$ref"],
        "#/definitions/com.example.v1.Tab"
    );
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = api
        .request(Method::GET, "/openapi/v2", &[("accept", protobuf)], "")
        .await;
    assert_eq!(answer.code, 200);
    assert!(String::from_utf8_lossy(&answer.bytes).contains("com.example.v1.Tab"));

    let path = format!("{DEFINITIONS}/tabs.example.com");
    let mut changed = api.get(&path).await.json();
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = json!(true);
    assert_eq!(api.put(&path, &changed).await.code, 200);
    let document = api.get("/openapi/v2").await.json();
    assert_eq!(
        document["definitions"]["com.example.v1.Tab"],
        json!({
            "type": "object",
            "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Tab"}],
            "x-kubernetes-selectable-fields": [{"fieldPath": "spec.color"}],
        })
    );
}
