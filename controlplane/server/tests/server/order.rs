//! JSON as in Go's output, for readers without a parser: its order and its escapes.

use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::json;

use crate::support::Api;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn failures_begin_with_what_they_are() {
    let api = Api::start().await;
    let failure = api.get(&format!("{CONFIG_MAPS}/b")).await.text();
    assert_eq!(
        failure.trim_end(),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"b\" not found","reason":"NotFound","details":{"name":"b","kind":"configmaps"},"code":404}"#
    );
}

/// Go's `json.Marshal` escapes the characters that are special to HTML and JavaScript, in every form of an answer.
#[tokio::test]
async fn answers_escape_what_is_special_to_html() {
    let api = Api::start().await;
    let text = "<a href=\"é–\">&\u{2028}\u{2029}";
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "a", "annotations": {annotation: text}}, "data": {"text": text},
    });
    let created = api.post(CONFIG_MAPS, &object).await;
    assert_eq!(created.json()["data"]["text"], text);
    let escaped = r#"\u003ca href=\"é–\"\u003e\u0026\u2028\u2029"#;
    let one = format!("{CONFIG_MAPS}/a");
    let tables = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let metadata_list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let ways = [
        (one.clone(), "application/json", 2),
        (format!("{one}?pretty=1"), "application/json", 2),
        (one.clone(), metadata, 1),
        (format!("{one}?includeObject=Object"), tables, 2),
        (CONFIG_MAPS.to_owned(), "application/json", 2),
        (format!("{CONFIG_MAPS}?pretty=1"), "application/json", 2),
        (CONFIG_MAPS.to_owned(), metadata_list, 1),
        (format!("{CONFIG_MAPS}?includeObject=Object"), tables, 2),
    ];
    for (path, accept, times) in ways {
        let answer = api.request(Method::GET, &path, &[("accept", accept)], "").await;
        assert_eq!(
            answer.text().matches(escaped).count(),
            times,
            "{path} {accept}: {}",
            answer.text()
        );
    }
    let yaml = api
        .request(Method::GET, &one, &[("accept", "application/yaml")], "")
        .await;
    assert!(!yaml.text().contains("u003c"), "{}", yaml.text());

    let watch = Request::get(format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name=a"));
    let mut events = api
        .send(watch.body(axum::body::Body::empty()).unwrap())
        .await
        .into_body();
    let event = events.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(String::from_utf8_lossy(&event).matches(escaped).count(), 2);

    let failure = api.get(&format!("{CONFIG_MAPS}?labelSelector=a%3E%3C")).await;
    assert!(failure.text().contains(r"found '\u003c'"), "{}", failure.text());
}
