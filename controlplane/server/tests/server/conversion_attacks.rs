//! Malicious conversion webhooks: none makes the server wait forever, hold much memory, or answer
//! or store invalid objects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::conversions::{EXTENTS, all, converted_tabs, success};
use crate::definitions::{TABS, define, tab};
use crate::support::webhook::{Reply, Webhook};
use crate::support::{Api, Frames};

type Way = Box<dyn Fn(&Value) -> Reply + Send + Sync>;

/// Starts a server with one object of a kind, `a`, and a converter whose behavior can be set.
async fn started() -> (Api, Webhook, Arc<Mutex<Way>>) {
    let api = Api::start().await;
    let way: Arc<Mutex<Way>> = Arc::new(Mutex::new(Box::new(|review| success(&all(review)))));
    let chosen = Arc::clone(&way);
    let hook = Webhook::start(move |review| chosen.lock().unwrap()(review)).await;
    define(&api, &converted_tabs(&hook)).await;
    let object =
        json!({"apiVersion": "example.com/v2", "kind": "Tab", "metadata": {"name": "a"}, "spec": {"extent": "4"}});
    assert_eq!(api.post(EXTENTS, &object).await.code, 201);
    (api, hook, way)
}

#[tokio::test]
async fn attack_a_converter_that_hangs_is_waited_for_as_long_as_the_request_may_take() {
    let (api, _hook, way) = started().await;
    *way.lock().unwrap() = Box::new(|_review| Reply::Never);
    let began = Instant::now();
    let answer = api.get(&format!("{TABS}/a?timeout=500ms")).await;
    let message = "Timeout: request did not complete within requested timeout - context deadline exceeded";
    assert_eq!((answer.code.as_u16(), answer.message().as_str()), (504, message));
    let answer = api.post(&format!("{TABS}?timeout=500ms"), &tab("b", &json!({}))).await;
    assert_eq!(answer.code, 504, "{}", answer.text());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // Requests that need no conversion still work.
    assert_eq!(api.get(&format!("{EXTENTS}/a")).await.code, 200);
    assert_eq!(api.get(&format!("{EXTENTS}/b")).await.code, 404);
}

#[tokio::test]
async fn attack_a_converter_changes_neither_kind_nor_identity() {
    let (api, _hook, way) = started().await;
    let uid = api.get(&format!("{EXTENTS}/a")).await.json()["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap().to_owned();
    let invalid = "conversion webhook for example.com/v2, Kind=Tab returned invalid object";
    let metadata = "conversion webhook for example.com/v2, Kind=Tab returned invalid metadata";
    for (patch, message) in [
        (
            json!({"metadata": {"name": "b"}}),
            format!("{invalid}: must have the same name: a != b"),
        ),
        (
            json!({"metadata": {"namespace": "b"}}),
            format!("{invalid}: must have the same namespace: default != b"),
        ),
        (
            json!({"metadata": {"uid": "b"}}),
            format!("{invalid}: must have the same UID: {uid} != b"),
        ),
        (
            json!({"kind": "Pod"}),
            format!("{invalid} at index 0: invalid kind (expected Tab, received Pod)"),
        ),
        (
            json!({"apiVersion": "example.com/v3"}),
            format!("{invalid} at index 0: invalid groupVersion (expected example.com/v1, received example.com/v3)"),
        ),
        (
            json!({"metadata": null}),
            format!("{invalid}: must have the same name: a != "),
        ),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            format!("{metadata}: metadata.labels[a] must be a string, but is int64 in converted object"),
        ),
        (
            json!({"metadata": {"annotations": []}}),
            format!("{metadata}: invalid metadata.annotations of type []interface {{}} in converted object"),
        ),
    ] {
        *way.lock().unwrap() = Box::new(move |review| {
            let mut objects = all(review);
            api_patch(&mut objects[0], &patch);
            success(&objects)
        });
        let answer = api.get(&format!("{TABS}/a")).await;
        assert_eq!((answer.code.as_u16(), answer.message()), (500, message));
        assert!(answer.json().get("reason").is_none(), "{}", answer.text());
        // Nothing is stored through it either.
        assert_eq!(api.post(TABS, &tab("c", &json!({}))).await.code, 500);
    }
    *way.lock().unwrap() = Box::new(|review| {
        let mut objects = all(review);
        objects[0]["metadata"]["labels"] = json!({"bad value": "x"});
        success(&objects)
    });
    let answer = api.get(&format!("{TABS}/a")).await.message();
    assert!(
        answer.starts_with(&format!("{metadata}: metadata.labels: Invalid value: \"bad value\": ")),
        "{answer}"
    );
    assert_eq!(api.get(EXTENTS).await.json()["items"].as_array().unwrap().len(), 1);
}

fn api_patch(object: &mut Value, patch: &Value) {
    for (name, value) in patch.as_object().unwrap() {
        match value.as_object() {
            Some(_) => api_patch(&mut object[name], value),
            None => object[name] = value.clone(),
        }
    }
}

#[tokio::test]
async fn attack_an_answer_of_ten_mebibytes_is_not_read_to_its_end() {
    let (api, _hook, way) = started().await;
    *way.lock().unwrap() = Box::new(|_review| Reply::Raw(200, Vec::new(), vec![b' '; 10 << 20]));
    let message = api.get(&format!("{TABS}/a")).await.message();
    assert!(
        message.starts_with("conversion webhook for example.com/v2, Kind=Tab failed: unexpected error when reading")
    );
    assert!(
        message.ends_with("http: response body is larger than 6291456 bytes"),
        "{message}"
    );
}

#[tokio::test]
async fn attack_a_converter_that_fails_is_told_of_and_ends_watches() {
    let (api, _hook, way) = started().await;
    let failed = "conversion webhook for example.com/v2, Kind=Tab failed";
    let review = |response: Value| Reply::Review(response);
    let ways: [(Way, String); 6] = [
        (
            Box::new(move |_| review(json!({"result": {"status": "Failed", "message": "not today"}}))),
            format!("{failed}: not today"),
        ),
        (
            Box::new(move |_| review(json!({}))),
            format!("{failed}: response.result.status was '', not 'Success'"),
        ),
        (
            Box::new(|_| Reply::Raw(404, Vec::new(), Vec::new())),
            format!("{failed}: the server could not find the requested resource"),
        ),
        (
            Box::new(|_| Reply::Raw(200, Vec::new(), br#"{"kind":"Status"}"#.to_vec())),
            format!(
                "{failed}: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind=Status"
            ),
        ),
        (
            Box::new(|_| success(&[])),
            "conversion webhook for example.com/v2, Kind=Tab returned 0 objects, expected 1".to_owned(),
        ),
        (
            Box::new(|_| success(&[json!({"a": 1})])),
            "Object 'Kind' is missing in '{\"a\":1}'".to_owned(),
        ),
    ];
    for (own, message) in ways {
        *way.lock().unwrap() = own;
        for path in [format!("{TABS}/a"), TABS.to_owned()] {
            let answer = api.get(&path).await;
            assert_eq!(
                (answer.code.as_u16(), answer.message()),
                (500, message.clone()),
                "{path}"
            );
        }
        // Writes in the storage version succeed.
        let noted = json!({"metadata": {"annotations": {"a": message}}});
        let own = format!("{EXTENTS}/a?fieldManager=me");
        assert_eq!(api.patch(&own, "merge-patch+json", &noted).await.code, 200);
    }
    *way.lock().unwrap() = Box::new(|review| success(&all(review)));
    let mut watching = Frames::open(&api, &format!("{TABS}?watch=true"), "application/json").await;
    assert_eq!(watching.brief().await, "ADDED a");
    *way.lock().unwrap() = Box::new(|_| Reply::Review(json!({"result": {"status": "Failed", "message": "not today"}})));
    api.patch(
        &format!("{EXTENTS}/a"),
        "merge-patch+json",
        &json!({"spec": {"extent": "9"}}),
    )
    .await;
    let last = watching.next().await.unwrap();
    assert_eq!(
        (&last["type"], &last["object"]["message"]),
        (&json!("ERROR"), &json!(format!("{failed}: not today")))
    );
    assert_eq!(watching.next().await, None);
}

#[tokio::test]
async fn attack_a_converter_that_fails_after_the_commit_is_told_of_and_the_object_stays() {
    let (api, _hook, way) = started().await;
    *way.lock().unwrap() = Box::new(|review| {
        let request = &review["request"];
        if request["desiredAPIVersion"] == "example.com/v1" && request["objects"][0]["spec"]["extent"] == "9" {
            return Reply::Review(json!({"result": {"status": "Failed", "message": "not back"}}));
        }
        success(&all(review))
    });
    let nine = json!({"spec": {"size": 9}});
    let path = format!("{TABS}/a");
    for (name, answer) in [
        ("b", api.post(TABS, &tab("b", &nine["spec"])).await),
        ("a", api.patch(&path, "merge-patch+json", &nine).await),
    ] {
        let message = "conversion webhook for example.com/v2, Kind=Tab failed: not back";
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (500, message));
        assert!(answer.json().get("reason").is_none(), "{}", answer.text());
        let stored = api.get(&format!("{EXTENTS}/{name}")).await.json();
        assert_eq!(stored["spec"]["extent"], "9");
    }
}
