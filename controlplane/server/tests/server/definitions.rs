//! Kinds that objects define, and objects of them.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Frames};

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const TABS: &str = "/apis/example.com/v1/namespaces/default/tabs";

/// A definition of tabs with one version.
pub(crate) fn tabs() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tabs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "tabs", "kind": "Tab", "shortNames": ["tb"], "categories": ["all"]},
            "versions": [version("v1", true)],
        },
    })
}

fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "default": 3},
                    "color": {"type": "string"},
                    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "ports": {
                        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                        "items": {"type": "object", "required": ["name"], "properties": {
                            "name": {"type": "string"}, "number": {"type": "integer"},
                        }},
                    },
                }},
                "status": {"type": "object", "properties": {
                    "size": {"type": "integer"}, "selector": {"type": "string"},
                }},
            },
        }},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector",
        }},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.color"}],
    })
}

pub(crate) fn tab(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Tab", "metadata": {"name": name}, "spec": spec})
}

pub(crate) async fn define(api: &Api, definition: &Value) -> Value {
    let answer = api.post(DEFINITIONS, definition).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    answer.json()
}

pub(crate) async fn started() -> Api {
    let api = Api::start().await;
    define(&api, &tabs()).await;
    api
}

pub(crate) fn condition<'a>(definition: &'a Value, kind: &str) -> &'a Value {
    let conditions = definition["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|own| own["type"] == kind).unwrap()
}

/// Waits until the answer to a path satisfies the condition; panics with the last answer.
pub(crate) async fn eventually(api: &Api, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(5);
    loop {
        let answer = api.get(path).await;
        if holds(&answer) {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{path}: {}", answer.text());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_kind_is_served_as_soon_as_it_is_defined() {
    let api = Api::start().await;
    assert_eq!(api.get(TABS).await.code, 404);
    let made = define(&api, &tabs()).await;
    assert_eq!(made["spec"]["names"]["singular"], "tab");
    assert_eq!(made["spec"]["names"]["listKind"], "TabList");
    assert_eq!(made["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(made["status"]["acceptedNames"], made["spec"]["names"]);
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(condition(&made, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(
        condition(&made, "Established")["message"],
        "the initial names have been accepted"
    );

    let created = api.post(TABS, &tab("a", &json!({"color": "red", "zzz": 1}))).await;
    assert_eq!(created.code, 201, "{}", created.text());
    assert_eq!(created.warnings(), ["299 - \"unknown field \\\"spec.zzz\\\"\""]);
    let object = created.json();
    assert_eq!(
        object["spec"],
        json!({"color": "red", "size": 3}),
        "pruned and defaulted"
    );
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(api.get(&format!("{TABS}/a")).await.json(), object);
    let list = api.get(TABS).await.json();
    assert_eq!((&list["kind"], &list["items"]), (&json!("TabList"), &json!([object])));
    let strict = api
        .post(&format!("{TABS}?fieldValidation=Strict"), &tab("b", &json!({"zzz": 1})))
        .await;
    assert_eq!(strict.code, 400);
    assert!(
        strict
            .message()
            .ends_with("strict decoding error: unknown field \"spec.zzz\""),
        "{}",
        strict.text()
    );
}

#[tokio::test]
async fn objects_change_as_those_of_the_program_do() {
    let api = started().await;
    let path = format!("{TABS}/a");
    let mut watching = Frames::open(&api, &format!("{TABS}?watch=true"), "application/json").await;
    let made = api.post(TABS, &tab("a", &json!({"size": 1}))).await.json();
    assert_eq!(watching.next().await.unwrap()["object"], made);

    let mut put = made.clone();
    put["spec"]["size"] = json!(2);
    put["status"] = json!({"size": 9});
    let changed = api.put(&path, &put).await.json();
    assert_eq!(
        (&changed["spec"]["size"], &changed["metadata"]["generation"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(changed["status"], Value::Null, "status is written apart");
    let stale = api.put(&path, &put).await;
    assert_eq!(stale.code, 409, "{}", stale.text());
    let mut bare = put.clone();
    bare["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let refused = api.put(&path, &bare).await;
    assert_eq!(refused.code, 422);
    assert!(
        refused.message().contains("must be specified for an update"),
        "{}",
        refused.text()
    );

    let merged = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"color": "blue"}}))
        .await;
    assert_eq!(merged.json()["spec"], json!({"size": 2, "color": "blue"}));
    let operations = json!([{"op": "replace", "path": "/spec/size", "value": 5}]);
    assert_eq!(
        api.patch(&path, "json-patch+json", &operations).await.json()["spec"]["size"],
        5
    );
    let strategic = api.patch(&path, "strategic-merge-patch+json", &json!({})).await;
    assert_eq!(strategic.code, 415);
    assert_eq!(
        strategic.message(),
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
         application/merge-patch+json, application/apply-patch+yaml"
    );
}

#[tokio::test]
async fn status_and_scale_are_written_apart() {
    let api = started().await;
    let path = format!("{TABS}/a");
    api.post(TABS, &tab("a", &json!({"size": 5}))).await;
    let both = json!({"spec": {"size": 1}, "status": {"size": 4}});
    let status = api
        .patch(&format!("{path}/status"), "merge-patch+json", &both)
        .await
        .json();
    assert_eq!(
        (&status["spec"]["size"], &status["status"]["size"]),
        (&json!(5), &json!(4))
    );
    assert_eq!(status["metadata"]["generation"], 1);

    let scale = api.get(&format!("{path}/scale")).await.json();
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&json!(5), &json!(4))
    );
    let scaled = api
        .patch(
            &format!("{path}/scale"),
            "merge-patch+json",
            &json!({"spec": {"replicas": 7}}),
        )
        .await;
    assert_eq!(scaled.json()["spec"]["replicas"], 7, "{}", scaled.text());
    assert_eq!(api.get(&path).await.json()["spec"]["size"], 7);
    let negative = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"size": -1}}))
        .await;
    assert!(
        negative
            .message()
            .contains(".spec.size: Invalid value: -1: should be a non-negative integer"),
        "{}",
        negative.text()
    );

    assert_eq!(api.delete(&path, "").await.json()["status"], "Success");
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn server_side_apply_knows_the_lists_of_a_schema() {
    let api = started().await;
    let path = format!("{TABS}/a");
    let with = |name: &str, number: i32| {
        tab(
            "a",
            &json!({"ports": [{"name": name, "number": number}], "any": {"x": [1]}}),
        )
    };
    let one = api.apply(&path, "fieldManager=one", with("web", 80)).await;
    assert_eq!(one.code, 201, "{}", one.text());
    let fields = &one.json()["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(
        *fields,
        json!({
            "f:any": {"f:x": {}},
            "f:ports": {"k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:number": {}}},
        })
    );
    let two = api
        .apply(
            &path,
            "fieldManager=two",
            tab("a", &json!({"ports": [{"name": "dns", "number": 53}]})),
        )
        .await;
    let ports = &two.json()["spec"]["ports"];
    assert_eq!(ports.as_array().unwrap().len(), 2, "{}", two.text());
    let conflict = api.apply(&path, "fieldManager=two", with("web", 81)).await;
    assert_eq!(conflict.code, 409);
    assert!(
        conflict.message().contains(".spec.ports[name=\"web\"].number"),
        "{}",
        conflict.text()
    );
    let again = api.apply(&path, "fieldManager=one", with("web", 80)).await;
    assert_eq!(
        again.json()["metadata"]["resourceVersion"],
        two.json()["metadata"]["resourceVersion"],
        "no change"
    );
    let undeclared = api.apply(&path, "fieldManager=one", tab("a", &json!({"zzz": 1}))).await;
    assert_eq!(undeclared.code, 500);
    assert!(
        undeclared
            .message()
            .ends_with(".spec.zzz: field not declared in schema"),
        "{}",
        undeclared.text()
    );
}

#[tokio::test]
async fn tables_and_metadata_are_shown() {
    let api = started().await;
    api.post(TABS, &tab("a", &json!({"color": "red"}))).await;
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = api.request(Method::GET, TABS, &accept, "").await.json();
    let headings: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|own| own["name"].as_str().unwrap())
        .collect();
    assert_eq!(headings, ["Name", "Size", "Color", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..3],
        [json!("a"), json!(3), json!("red")]
    );
    let accept = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    )];
    let list = api.request(Method::GET, TABS, &accept, "").await.json();
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(api.request(Method::GET, TABS, &protobuf, "").await.code, 406);
    let chosen = api.get(&format!("{TABS}?fieldSelector=spec.color%3Dred")).await.json();
    assert_eq!(chosen["items"].as_array().unwrap().len(), 1);
    let others = api
        .get(&format!("{TABS}?fieldSelector=spec.color%21%3Dred"))
        .await
        .json();
    assert_eq!(others["items"].as_array().unwrap().len(), 0);
    assert_eq!(api.get(&format!("{TABS}?fieldSelector=spec.size%3D3")).await.code, 400);
}

#[tokio::test]
async fn discovery_follows() {
    let api = Api::start().await;
    assert_eq!(api.get("/apis/example.com").await.code, 404);
    let mut two = tabs();
    two["spec"]["versions"] = json!([version("v1beta1", false), version("v1", true)]);
    define(&api, &two).await;
    let group = api.get("/apis/example.com").await.json();
    assert_eq!(group["preferredVersion"]["version"], "v1");
    assert_eq!(group["versions"][1]["version"], "v1beta1");
    let groups = api.get("/apis").await.json();
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .any(|own| own["name"] == "example.com")
    );
    let resources = api.get("/apis/example.com/v1").await.json();
    let names: Vec<&str> = resources["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|own| own["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["tabs", "tabs/scale", "tabs/status"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["tb"]));
    let accept = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    )];
    let all = api.request(Method::GET, "/apis", &accept, "").await.json();
    let own = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|own| own["metadata"]["name"] == "example.com")
        .unwrap();
    assert_eq!(own["versions"][0]["resources"][0]["categories"], json!(["all"]));
    let path = format!("{DEFINITIONS}/tabs.example.com");
    api.patch(
        &path,
        "json-patch+json",
        &json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]),
    )
    .await;
    assert_eq!(api.get("/apis/example.com/v1beta1").await.code, 404);
    assert_eq!(
        api.get("/apis/example.com/v1beta1/namespaces/default/tabs").await.code,
        404
    );
}

#[tokio::test]
async fn versions_are_read_as_each_other() {
    let api = Api::start().await;
    let mut two = tabs();
    two["spec"]["versions"] = json!([version("v1", true), version("v2", false)]);
    two["spec"]["versions"][1]["deprecated"] = json!(true);
    define(&api, &two).await;
    api.post(TABS, &tab("a", &json!({"size": 1}))).await;
    let other = api.get("/apis/example.com/v2/namespaces/default/tabs/a").await;
    assert_eq!(other.warnings(), ["299 - \"example.com/v2 Tab is deprecated\""]);
    assert_eq!(
        (&other.json()["apiVersion"], &other.json()["spec"]["size"]),
        (&json!("example.com/v2"), &json!(1))
    );
    let wrong = api
        .post("/apis/example.com/v2/namespaces/default/tabs", &tab("b", &json!({})))
        .await;
    assert_eq!(
        (wrong.code.as_u16(), wrong.message().as_str()),
        (
            400,
            "the API version in the data (example.com/v1) does not match the expected API version (example.com/v2)"
        )
    );
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let moved = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let moved = api.patch(&path, "json-patch+json", &moved).await.json();
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(
        api.get(&format!("{TABS}/a")).await.json()["apiVersion"],
        "example.com/v1"
    );
    let gone = api
        .patch(
            &path,
            "json-patch+json",
            &json!([{"op": "remove", "path": "/spec/versions/0"}]),
        )
        .await;
    assert_eq!(gone.code, 422);
    assert!(
        gone.message()
            .contains("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions"),
        "{}",
        gone.text()
    );
}

#[tokio::test]
async fn a_scale_whose_field_is_missing_can_be_set() {
    let api = Api::start().await;
    let mut definition = tabs();
    let size = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size";
    *definition.pointer_mut(size).unwrap() = json!({"type": "integer"});
    assert_eq!(api.post(DEFINITIONS, &definition).await.code, 201);
    assert_eq!(api.post(TABS, &tab("a", &json!({}))).await.code, 201);
    let scale = format!("{TABS}/a/scale");
    let missing = api.get(&scale).await;
    assert_eq!(missing.code, 500);
    assert!(
        missing
            .message()
            .ends_with("the spec replicas field \".spec.size\" does not exist"),
        "{}",
        missing.message()
    );
    let empty = api
        .put(&scale, &json!({"metadata": {"name": "a", "namespace": "default"}}))
        .await;
    assert_eq!(
        (empty.code.as_u16(), empty.message().as_str()),
        (400, "the spec replicas field \".spec.size\" cannot be empty")
    );
    let set = api
        .patch(&scale, "merge-patch+json", &json!({"spec": {"replicas": 2}}))
        .await;
    assert_eq!((set.code.as_u16(), &set.json()["spec"]["replicas"]), (200, &json!(2)));
    assert_eq!(api.get(&format!("{TABS}/a")).await.json()["spec"]["size"], 2);
}
