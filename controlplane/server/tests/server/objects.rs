//! Create, read, update, patch and delete, by status codes and texts.

use crate::support::{Api, config_map, deployment, pod};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn a_client_library_sees_a_whole_life() {
    let api = Api::start().await;
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    let map: ConfigMap = serde_json::from_value(config_map("a")).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(created.metadata.uid.is_some());
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let mut changed = created.clone();
    changed.data = Some([("a".to_owned(), "2".to_owned())].into());
    let replaced = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(replaced.metadata.resource_version, created.metadata.resource_version);
    let error = maps.replace("a", &PostParams::default(), &changed).await.unwrap_err();
    assert!(error.to_string().contains("the object has been modified"), "{error}");
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn what_is_missing_or_there_twice() {
    let api = Api::start().await;
    let answer = api.get(&format!("{CONFIG_MAPS}/x")).await;
    assert_eq!(answer.code, 404);
    assert_eq!(
        answer.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
            "message": "configmaps \"x\" not found", "details": {"name": "x", "kind": "configmaps"}, "code": 404})
    );
    assert_eq!(
        api.get(&format!("{DEPLOYMENTS}/x")).await.message(),
        "deployments.apps \"x\" not found"
    );
    assert_eq!(api.post(CONFIG_MAPS, &config_map("a")).await.code, 201);
    let again = api.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(
        (again.code.as_u16(), again.message().as_str()),
        (409, "configmaps \"a\" already exists")
    );
    let nowhere = api.post("/api/v1/namespaces/none/configmaps", &config_map("a")).await;
    assert_eq!(
        (nowhere.code.as_u16(), nowhere.message().as_str()),
        (404, "namespaces \"none\" not found")
    );
    let mut elsewhere = config_map("b");
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    let answer = api.post(CONFIG_MAPS, &elsewhere).await;
    assert_eq!(answer.code, 400);
    assert_eq!(
        answer.message(),
        "the namespace of the provided object does not match the namespace sent on the request"
    );
    let mut versioned = config_map("b");
    versioned["metadata"]["resourceVersion"] = json!("7");
    let answer = api.post(CONFIG_MAPS, &versioned).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (500, "resourceVersion should not be set on objects to be created")
    );
    assert_eq!(
        api.post(&format!("{CONFIG_MAPS}?dryRun=All"), &versioned).await.code,
        201
    );
    // To upstream's store these name no revision.
    for (name, version) in [("zero", "0"), ("word", "v1")] {
        let mut versioned = config_map(name);
        versioned["metadata"]["resourceVersion"] = json!(version);
        assert_eq!(api.post(CONFIG_MAPS, &versioned).await.code, 201, "{version}");
    }
    versioned["metadata"]["name"] = json!("not valid");
    let answer = api.post(CONFIG_MAPS, &versioned).await;
    assert_eq!(answer.code, 422, "validation comes first");
}

#[tokio::test]
async fn names_are_generated() {
    let api = Api::start().await;
    let mut map = config_map("");
    map["metadata"] = json!({"generateName": "web-"});
    let answer = api.post(CONFIG_MAPS, &map).await.json();
    let name = answer["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    map["metadata"]["name"] = name.into();
    let again = api.post(CONFIG_MAPS, &map).await;
    let wanted =
        format!("configmaps {name:?} already exists, the server was not able to generate a unique name for the object");
    assert_eq!((again.code.as_u16(), again.message()), (409, wanted));
    assert_eq!(again.json()["details"]["retryAfterSeconds"], 1);
}

#[tokio::test]
async fn updates_respect_revisions_and_identity() {
    let api = Api::start().await;
    let created = api.post(CONFIG_MAPS, &config_map("a")).await.json();
    let path = format!("{CONFIG_MAPS}/a");
    let same = api.put(&path, &created).await.json();
    assert_eq!(same, created, "an update that changes nothing writes nothing");
    let mut stale = created.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    let answer = api.put(&path, &stale).await;
    assert_eq!(answer.code, 409);
    assert_eq!(
        answer.message(),
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to \
         the latest version and try again"
    );
    stale["metadata"]["resourceVersion"] = json!("v1");
    let answer = api.put(&path, &stale).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (500, r#"strconv.ParseUint: parsing "v1": invalid syntax"#)
    );
    let mut other = config_map("a");
    other["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let answer = api.put(&path, &other).await;
    assert_eq!(answer.code, 409);
    assert!(
        answer
            .message()
            .contains("Key: /registry/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 00000000"),
        "{}",
        answer.message()
    );
    // A patch has no preconditions but its revision: clients take the 422 for "another object has the name".
    let change = json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}});
    for media in ["merge-patch+json", "strategic-merge-patch+json"] {
        let answer = api.patch(&path, media, &change).await;
        let wanted = "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \
                      \"00000000-0000-0000-0000-000000000000\": field is immutable";
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (422, wanted));
    }
    let answer = api.put(&path, &config_map("b")).await;
    assert_eq!(
        answer.message(),
        "the name of the object (b) does not match the name on the URL (a)"
    );
    // So is one for a name that nothing has.
    let answer = api.put(&format!("{CONFIG_MAPS}/none"), &config_map("b")).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (
            400,
            "the name of the object (b) does not match the name on the URL (none)"
        )
    );
    let unconditional = api
        .put(&path, &json!({"metadata": {"name": "a"}, "data": {"z": "1"}}))
        .await;
    assert_eq!(unconditional.code, 200);
    assert_eq!(unconditional.json()["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(
        api.put(&format!("{CONFIG_MAPS}/none"), &config_map("none")).await.code,
        404
    );
}

#[tokio::test]
async fn generation_moves_only_with_the_spec() {
    let api = Api::start().await;
    let created = api.post(DEPLOYMENTS, &deployment("web")).await;
    assert_eq!(created.code, 201, "{}", created.text());
    assert_eq!(created.json()["metadata"]["generation"], 1);
    let path = format!("{DEPLOYMENTS}/web");
    let labelled = api
        .patch(&path, "merge-patch+json", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .json();
    assert_eq!(labelled["metadata"]["generation"], 1);
    let scaled = api
        .patch(&path, "strategic-merge-patch+json", &json!({"spec": {"replicas": 5}}))
        .await
        .json();
    assert_eq!(
        (&scaled["metadata"]["generation"], &scaled["spec"]["replicas"]),
        (&json!(2), &json!(5))
    );
    let status = json!({"spec": {"replicas": 9}, "status": {"replicas": 5, "observedGeneration": 2}});
    let answer = api
        .patch(&format!("{path}/status"), "merge-patch+json", &status)
        .await
        .json();
    assert_eq!(
        (&answer["spec"]["replicas"], &answer["status"]["replicas"]),
        (&json!(5), &json!(5))
    );
    assert_eq!(answer["metadata"]["generation"], 2);
}

#[tokio::test]
async fn patches_of_three_kinds() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "nginx", "image": "nginx:2"}]}}}});
    let answer = api.patch(&path, "strategic-merge-patch+json", &strategic).await.json();
    let container = &answer["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["image"], &container["ports"][0]["containerPort"]),
        (&json!("nginx:2"), &json!(80))
    );
    let operations = json!([{"op": "replace", "path": "/spec/replicas", "value": 7}]);
    assert_eq!(
        api.patch(&path, "json-patch+json", &operations).await.json()["spec"]["replicas"],
        7
    );
    let failing = json!([{"op": "test", "path": "/spec/replicas", "value": 1}]);
    assert_eq!(api.patch(&path, "json-patch+json", &failing).await.code, 422);
    let answer = api.patch(&path, "apply-patch+cbor", &json!({})).await;
    assert_eq!(answer.code, 415);
    assert!(
        answer
            .message()
            .starts_with("the body of the request was in an unknown format"),
        "{}",
        answer.message()
    );
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}});
    assert_eq!(api.patch(&path, "merge-patch+json", &stale).await.code, 409);
}

#[tokio::test]
async fn fields_are_validated_as_asked() {
    let api = Api::start().await;
    let mut unknown = config_map("a");
    unknown["foo"] = json!(1);
    let strict = api
        .post(&format!("{CONFIG_MAPS}?fieldValidation=Strict"), &unknown)
        .await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"foo\""
    );
    let warned = api.post(CONFIG_MAPS, &unknown).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.warnings(), ["299 - \"unknown field \\\"foo\\\"\""]);
    unknown["metadata"]["name"] = json!("b");
    let ignored = api
        .post(&format!("{CONFIG_MAPS}?fieldValidation=Ignore"), &unknown)
        .await;
    assert!(ignored.warnings().is_empty());
    let twice = r#"{"metadata":{"name":"c"},"data":{"a":"1","a":"2"}}"#;
    let path = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let answer = api
        .request(Method::POST, &path, &[("content-type", "application/json")], twice)
        .await;
    assert!(
        answer
            .message()
            .ends_with("duplicate field \"data.a\" ({\"metadata\":{\"name\":\"c\"},\"...)")
            || answer.message().contains("duplicate field \"data.a\""),
        "{}",
        answer.message()
    );
    let answer = api
        .post(&format!("{CONFIG_MAPS}?fieldValidation=Maybe"), &config_map("d"))
        .await;
    assert_eq!(answer.code, 422);
}

#[tokio::test]
async fn invalid_objects_are_told_why() {
    let api = Api::start().await;
    let answer = api.post(DEPLOYMENTS, &deployment("Web")).await;
    assert_eq!(answer.code, 422);
    let status = answer.json();
    let rule = "Invalid value: \"Web\": a lowercase RFC 1123 subdomain must consist of lower case";
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("Deployment.apps \"Web\" is invalid: metadata.name: {rule}")),
        "{message}"
    );
    let details = &status["details"];
    assert_eq!(
        (&details["name"], &details["group"], &details["kind"]),
        (&json!("Web"), &json!("apps"), &json!("Deployment"))
    );
    let cause = &details["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&json!("FieldValueInvalid"), &json!("metadata.name"))
    );
    assert!(cause["message"].as_str().unwrap().starts_with(rule));
}

#[tokio::test]
async fn dry_runs_leave_no_trace() {
    let api = Api::start().await;
    let before = api.store.revision();
    let answer = api.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await;
    assert_eq!(answer.code, 201);
    assert!(answer.json()["metadata"]["resourceVersion"].is_null());
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
    assert_eq!(api.store.revision(), before);
    let answer = api.post(&format!("{CONFIG_MAPS}?dryRun=Some"), &config_map("a")).await;
    assert_eq!(answer.code, 422);
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    assert_eq!(
        api.patch(&path, "merge-patch+json", &json!({"data": {"a": "9"}}))
            .await
            .json()["data"]["a"],
        "9"
    );
    assert_eq!(api.delete(&path, "").await.code, 200);
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/a")).await.json()["data"]["a"], "1");
}

#[tokio::test]
async fn pods_are_admitted_with_priority_and_tolerations() {
    let api = Api::start().await;
    let created = api.post(PODS, &pod("a")).await.json();
    assert_eq!(created["spec"]["priority"], 0, "{created}");
    assert_eq!(created["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(created["spec"]["tolerations"][0]["tolerationSeconds"], 300);
    let mut critical = pod("b");
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    let answer = api.post("/api/v1/namespaces/kube-system/pods", &critical).await.json();
    assert_eq!(answer["spec"]["priority"], 2_000_001_000, "{answer}");
    critical["spec"]["priorityClassName"] = json!("none");
    let answer = api.post(PODS, &critical).await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.message(),
        "pods \"b\" is forbidden: no PriorityClass with name none was found"
    );
}

#[tokio::test]
async fn replacements_of_pods_keep_the_priority_that_they_leave_out() {
    let api = Api::start().await;
    let made = api.post(PODS, &pod("p")).await.json();
    let mut replacement = made.clone();
    replacement["metadata"]["labels"] = json!({"a": "b"});
    let spec = replacement["spec"].as_object_mut().unwrap();
    spec.remove("priority");
    spec.remove("preemptionPolicy");
    let answer = api.put(&format!("{PODS}/p"), &replacement).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    assert_eq!(answer.json()["spec"], made["spec"]);
}
