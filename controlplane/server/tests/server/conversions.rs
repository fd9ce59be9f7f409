//! Kinds whose versions are converted by a webhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::{Value, json};

use crate::definitions::{DEFINITIONS, TABS, condition, define, tab, tabs};
use crate::support::webhook::{MUTATING, Reply, Webhook, configure, patched};
use crate::support::{Api, Frames, entry, managers};

pub(crate) const EXTENTS: &str = "/apis/example.com/v2/namespaces/default/tabs";

/// Definition of tabs whose storage version `v2` has the text `extent` where `v1` has `size`.
pub(crate) fn converted_tabs(hook: &Webhook) -> Value {
    let mut tabs = tabs();
    let mut first = tabs["spec"]["versions"][0].clone();
    first["storage"] = json!(false);
    let own = &mut first["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    own["grade"] = json!({"type": "string", "default": "plain"});
    let mut second = first.clone();
    (second["name"], second["storage"]) = (json!("v2"), json!(true));
    let spec = &mut second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["size"].take();
    spec.as_object_mut().unwrap().remove("size");
    spec["extent"] = json!({"type": "string", "default": "5"});
    second["subresources"] = json!({"status": {}});
    second["additionalPrinterColumns"] = json!([{"name": "Extent", "type": "string", "jsonPath": ".spec.extent"}]);
    tabs["spec"]["versions"] = json!([first, second]);
    let url = format!("https://localhost:{}/convert", hook.address.port());
    tabs["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": url, "caBundle": hook.bundle},
    }});
    tabs
}

/// Converts correctly.
pub(crate) fn convert(object: &Value, to: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = to.clone();
    let Some(spec) = object["spec"].as_object_mut() else {
        return object;
    };
    spec.remove("grade");
    if to == "example.com/v2" {
        if let Some(size) = spec.remove("size") {
            spec.insert("extent".to_owned(), json!(size.to_string()));
        }
    } else if let Some(extent) = spec.remove("extent") {
        spec.insert("size".to_owned(), extent.as_str().unwrap().parse().unwrap());
    }
    object
}

pub(crate) fn all(review: &Value) -> Vec<Value> {
    let request = &review["request"];
    let objects = request["objects"].as_array().unwrap().iter();
    objects
        .map(|object| convert(object, &request["desiredAPIVersion"]))
        .collect()
}

pub(crate) fn success(objects: &[Value]) -> Reply {
    Reply::Review(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

async fn started() -> (Api, Webhook) {
    let api = Api::start().await;
    let hook = Webhook::start(|review| success(&all(review))).await;
    define(&api, &converted_tabs(&hook)).await;
    (api, hook)
}

/// `VERSION OBJECTS` of each review that came since this was asked last.
fn reviews(hook: &Webhook) -> Vec<String> {
    let asked = std::mem::take(&mut *hook.asked.lock().unwrap());
    let brief = asked.iter().map(|review| {
        let count = review["request"]["objects"].as_array().unwrap().len();
        format!("{} {count}", review["request"]["desiredAPIVersion"].as_str().unwrap())
    });
    brief.collect()
}

#[tokio::test]
async fn objects_are_written_and_read_in_every_version() {
    let (api, hook) = started().await;
    let made = api.post(TABS, &tab("a", &json!({"size": 7, "color": "red"}))).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let made = made.json();
    // As upstream, fields that a conversion drops are not defaulted on reads.
    assert_eq!(made["spec"], json!({"size": 7, "color": "red"}));
    let review = hook.asked.lock().unwrap()[0].clone();
    assert_eq!(
        (&review["kind"], &review["apiVersion"]),
        (&json!("ConversionReview"), &json!("apiextensions.k8s.io/v1"))
    );
    let sent = &review["request"]["objects"][0];
    assert_eq!(sent["spec"], json!({"size": 7, "color": "red", "grade": "plain"}));
    assert_eq!(sent["metadata"]["uid"], made["metadata"]["uid"]);
    assert!(sent["metadata"]["managedFields"].is_array() && sent["metadata"].get("resourceVersion").is_none());
    assert_eq!(reviews(&hook), ["example.com/v2 1", "example.com/v1 1"]);

    let stored = api.get(&format!("{EXTENTS}/a")).await.json();
    assert_eq!(stored["spec"], json!({"extent": "7", "color": "red", "grade": "plain"}));
    assert_eq!(reviews(&hook), [""; 0], "it is of the version that is stored");
    api.post(
        EXTENTS,
        &json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": "b"}, "spec": {}}),
    )
    .await;
    let list = api.get(&format!("{TABS}?fieldSelector=spec.color!=red")).await.json();
    assert_eq!(
        list["items"][0]["spec"],
        json!({"size": 5}),
        "the stored version's default"
    );
    assert_eq!(reviews(&hook), ["example.com/v1 2"], "one review of many objects");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = api
        .request(http::Method::GET, TABS, &[("accept", table)], "")
        .await
        .json();
    assert_eq!(table["rows"][0]["cells"][1], 7);

    let scale = json!({"spec": {"replicas": 9}});
    let scaled = api.patch(&format!("{TABS}/a/scale"), "merge-patch+json", &scale).await;
    assert_eq!(scaled.json()["spec"]["replicas"], 9, "{}", scaled.text());
    let status = json!({"status": {"size": 2}});
    let told = api
        .patch(&format!("{TABS}/a/status"), "merge-patch+json", &status)
        .await;
    assert_eq!(told.code, 200, "{}", told.text());
    let after = api.get(&format!("{EXTENTS}/a")).await.json();
    assert_eq!(
        (&after["spec"]["extent"], &after["status"]),
        (&json!("9"), &json!({"size": 2}))
    );

    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    api.patch(&format!("{TABS}/a"), "merge-patch+json", &held).await;
    let going = api.delete(&format!("{TABS}/a"), "").await.json();
    assert_eq!(going["spec"]["size"], 9);
    let going = api.get(&format!("{EXTENTS}/a")).await.json();
    assert!(
        going["metadata"]["deletionTimestamp"].is_string() && going["spec"]["extent"] == "9",
        "{going:#}"
    );
    let released = json!({"metadata": {"finalizers": null}});
    assert_eq!(
        api.patch(&format!("{TABS}/a"), "merge-patch+json", &released)
            .await
            .code,
        200
    );
    assert_eq!(api.get(&format!("{TABS}/a")).await.code, 404);
    assert_eq!(api.delete(&format!("{TABS}/b"), "").await.json()["status"], "Success");
}

#[tokio::test]
async fn watchers_see_their_own_version_and_share_its_conversion() {
    let (api, hook) = started().await;
    let path = format!("{TABS}?watch=true&labelSelector=by=hook");
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(Frames::open(&api, &path, "application/json").await);
    }
    let labelled = json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": "a", "labels": {"by": "hook"}},
        "spec": {"extent": "4"}});
    assert_eq!(api.post(EXTENTS, &labelled).await.code, 201);
    for watch in &mut watches {
        let frame = watch.next().await.unwrap();
        assert_eq!(
            (&frame["type"], &frame["object"]["spec"]["size"]),
            (&json!("ADDED"), &json!(4))
        );
    }
    assert_eq!(reviews(&hook), ["example.com/v1 1"]);
    let unlabelled = json!({"metadata": {"labels": null}});
    api.patch(&format!("{EXTENTS}/a"), "merge-patch+json", &unlabelled)
        .await;
    let frame = watches[0].next().await.unwrap();
    assert_eq!(
        (&frame["type"], &frame["object"]["spec"]["size"]),
        (&json!("DELETED"), &json!(4))
    );
}

#[tokio::test]
async fn managers_of_several_versions_meet() {
    let (api, _hook) = started().await;
    let path = format!("{TABS}/a");
    let applied = api
        .apply(&path, "fieldManager=one", tab("a", &json!({"size": 7})))
        .await;
    assert_eq!(applied.code, 201, "{}", applied.text());
    let other =
        json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": "a"}, "spec": {"extent": "8"}});
    let path = format!("{EXTENTS}/a");
    let conflict = api.apply(&path, "fieldManager=two", &other).await;
    let message = "Apply failed with 1 conflict: conflict with \"one\": .spec.size";
    assert_eq!(conflict.message(), message);
    let forced = api.apply(&path, "fieldManager=two&force=true", &other).await.json();
    assert_eq!(managers(&forced), ["two Apply"], "{forced:#}");
    let written = json!({"spec": {"size": 3}});
    api.patch(&format!("{TABS}/a?fieldManager=three"), "merge-patch+json", &written)
        .await;
    let after = api.get(&path).await.json();
    assert_eq!(managers(&after), ["three Update"], "{after:#}");
    assert_eq!(entry(&after, "three")["apiVersion"], "example.com/v1");
    assert_eq!(after["spec"]["extent"], "3");
}

#[tokio::test]
async fn objects_of_a_version_that_was_stored_before_are_converted_when_they_are_read() {
    let (api, hook) = started().await;
    for (name, size) in [("a", 1), ("b", 2)] {
        assert_eq!(api.post(TABS, &tab(name, &json!({"size": size}))).await.code, 201);
    }
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let swap = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": true},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": false}]);
    let swapped = api.patch(&path, "json-patch+json", &swap).await.json();
    assert_eq!(swapped["status"]["storedVersions"], json!(["v2", "v1"]));
    // Rewriting one of the two makes the list mixed.
    assert_eq!(
        api.patch(
            &format!("{TABS}/b"),
            "merge-patch+json",
            &json!({"spec": {"color": "red"}})
        )
        .await
        .code,
        200
    );
    reviews(&hook);
    let list = api.get(TABS).await.json();
    assert_eq!(
        (&list["items"][0]["spec"]["size"], &list["items"][1]["spec"]["size"]),
        (&json!(1), &json!(2))
    );
    let list = api.get(EXTENTS).await.json();
    assert_eq!(
        (&list["items"][0]["spec"]["extent"], &list["items"][1]["spec"]["extent"]),
        (&json!("1"), &json!("2"))
    );
    assert_eq!(
        reviews(&hook),
        ["example.com/v1 1", "example.com/v2 1"],
        "each only of the other version"
    );
}

#[tokio::test]
async fn labels_that_a_conversion_changes_are_those_that_are_selected_by() {
    let api = Api::start().await;
    let is_on = Arc::new(AtomicBool::new(true));
    let adds = Arc::clone(&is_on);
    let hook = Webhook::start(move |review| {
        let mut objects = all(review);
        for object in &mut objects {
            if adds.load(Ordering::SeqCst) && object["apiVersion"] == "example.com/v1" {
                object["metadata"]["labels"] = json!({"from": "hook"});
                object["metadata"]["generation"] = json!(77);
            }
        }
        success(&objects)
    })
    .await;
    define(&api, &converted_tabs(&hook)).await;
    let object =
        json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": "a"}, "spec": {"extent": "4"}});
    assert_eq!(api.post(EXTENTS, &object).await.code, 201);
    let selected = api.get(&format!("{TABS}?labelSelector=from=hook")).await.json();
    assert_eq!(selected["items"][0]["metadata"]["generation"], 1, "{selected:#}");
    let stored = api.get(&format!("{EXTENTS}?labelSelector=from=hook")).await.json();
    assert_eq!(stored["items"], json!([]));
    is_on.store(false, Ordering::SeqCst);
    assert_eq!(
        api.get(&format!("{TABS}?labelSelector=from=hook")).await.json()["items"],
        json!([])
    );
}

#[tokio::test]
async fn admission_sees_the_version_that_its_rules_name() {
    let (api, _converter) = started().await;
    let size = Arc::new(AtomicI64::new(12));
    let given = Arc::clone(&size);
    let hook = Webhook::start(move |_review| {
        let size = given.load(Ordering::SeqCst);
        patched(&json!([{"op": "replace", "path": "/spec/size", "value": size}]))
    })
    .await;
    let rules = |version: &str| json!([{"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": [version], "resources": ["tabs"]}]);
    let mut mutating = hook.entry("one.example.com");
    mutating["rules"] = rules("v1");
    configure(&api, MUTATING, "one", json!([mutating])).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": rules("v1")},
        "validations": [{"expression": "object.apiVersion == 'example.com/v1' && object.spec.size < 20"}],
    }});
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (kind, object) in [("policies", policy), ("policybindings", binding)] {
        let made = api.post(&format!("{group}/validatingadmission{kind}"), &object).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    let object = |name: &str| json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": name}, "spec": {"extent": "4"}});
    let made = api.post(EXTENTS, &object("a")).await;
    assert_eq!(made.json()["spec"]["extent"], "12", "{}", made.text());
    let request = &hook.requests()[0];
    let versions = ["kind", "resource", "requestKind", "requestResource"].map(|of| &request[of]["version"]);
    assert_eq!(versions, ["v1", "v1", "v2", "v2"]);
    assert_eq!(
        (&request["object"]["apiVersion"], &request["object"]["spec"]["size"]),
        (&json!("example.com/v1"), &json!(4))
    );
    size.store(30, Ordering::SeqCst);
    let refused = api.post(EXTENTS, &object("b")).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
    let exact = json!([{"op": "replace", "path": "/webhooks/0/matchPolicy", "value": "Exact"}]);
    assert_eq!(
        api.patch(&format!("{MUTATING}/one"), "json-patch+json", &exact)
            .await
            .code,
        200
    );
    assert_eq!(api.post(EXTENTS, &object("b")).await.json()["spec"]["extent"], "4");
}

#[tokio::test]
async fn a_kind_is_not_served_before_its_webhook_can_be_trusted() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| success(&all(review))).await;
    let mut definition = converted_tabs(&hook);
    definition["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = json!("eA==");
    let made = define(&api, &definition).await;
    let established = condition(&made, "Established");
    assert_eq!(
        (&established["status"], &established["reason"], &established["message"]),
        (
            &json!("False"),
            &json!("InvalidCABundle"),
            &json!("The conversion webhook CABundle is invalid")
        )
    );
    assert_eq!(condition(&made, "NamesAccepted")["status"], "True");
    let unresolved = api.get(TABS).await;
    assert_eq!(
        (unresolved.code, unresolved.message().as_str()),
        (
            http::StatusCode::INTERNAL_SERVER_ERROR,
            "Internal error occurred: error resolving resource"
        )
    );
    assert_eq!(
        api.get("/apis/example.com/v1/tabs/a").await.code,
        404,
        "no path of its scope"
    );
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let bundle = |bundle: &str| json!([{"op": "replace", "path": "/spec/conversion/webhook/clientConfig/caBundle", "value": bundle}]);
    let mended = api.patch(&path, "json-patch+json", &bundle(&hook.bundle)).await;
    assert_eq!(mended.code, 200, "{}", mended.text());
    assert_eq!(condition(&mended.json(), "Established")["status"], "True");
    assert_eq!(api.get(TABS).await.code, 200);
    let broken = api.patch(&path, "json-patch+json", &bundle("eA==")).await;
    assert_eq!(broken.code, 422, "{}", broken.text());
    assert!(
        broken.message().contains("unable to load root certificates"),
        "{}",
        broken.text()
    );
}
