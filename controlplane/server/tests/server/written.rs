//! Format of JSON: in the order of upstream's structs, with a final newline, and over many lines
//! for people.

use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

use crate::support::{Api, Frames, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn text(api: &Api, path: &str, headers: &[(&str, &str)]) -> String {
    api.request(Method::GET, path, headers, Body::empty()).await.text()
}

/// Asserts that the text contains the parts in this order, between content that differs from run to
/// run.
fn assert_parts(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part} is not in {rest} of {text}"));
        rest = &rest[at + part.len()..];
    }
}

#[tokio::test]
async fn members_stand_in_upstreams_order() {
    let api = Api::start().await;
    let made = api.post(PODS, &pod("p")).await.text();
    let parts = [
        "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"p\",\"namespace\":\"default\",\"uid\":",
        ",\"resourceVersion\":",
        ",\"generation\":1,\"creationTimestamp\":",
        ",\"labels\":{\"app\":\"p\"},\"managedFields\":[{\"manager\":",
        ",\"operation\":\"Update\",\"apiVersion\":\"v1\",\"time\":",
        ",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{",
        "},\"spec\":{\"volumes\":[{\"name\":",
        "\"containers\":[{\"name\":\"c\",\"image\":\"nginx:1.14.2\"",
        "}],\"restartPolicy\":\"Always\"",
        "\"status\":{\"phase\":\"Pending\",\"qosClass\":\"BestEffort\"}}\n",
    ];
    assert_parts(&made, &parts);
    let read = text(&api, &format!("{PODS}/p"), &[]).await;
    assert_eq!(read, made);
    let item = "\"metadata\":{\"name\":\"p\",\"namespace\":\"default\",\"uid\":";
    let list = text(&api, &format!("{PODS}?limit=1"), &[]).await;
    let head = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":";
    assert_parts(&list, &[head, "},\"items\":[{", item, "}]}\n"]);
    let table = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let table = text(&api, PODS, &table).await;
    let parts = [
        "{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"resourceVersion\":",
        "\"},\"columnDefinitions\":[{\"name\":\"Name\",\"type\":\"string\",\"format\":\"name\",\"description\":",
        ",\"priority\":0}",
        "],\"rows\":[{\"cells\":[\"p\",",
        "],\"object\":{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",",
        item,
        "}]}\n",
    ];
    assert_parts(&table, &parts);
    let resources = text(&api, "/api/v1", &[]).await;
    let first = "{\"kind\":\"APIResourceList\",\"groupVersion\":\"v1\",\"resources\":[{\"name\":\"bindings\",\"singularName\":\"binding\",\"namespaced\":true,\"kind\":\"Binding\",\"verbs\":[\"create\"]}";
    assert!(
        resources.starts_with(first) && resources.ends_with("]}\n"),
        "{resources}"
    );
    assert_eq!(
        text(&api, &format!("{PODS}/none"), &[]).await,
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"pods \\\"none\\\" not found\",\"reason\":\"NotFound\",\"details\":{\"name\":\"none\",\"kind\":\"pods\"},\"code\":404}\n"
    );
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    api.post(
        "/apis/apps/v1/namespaces/default/deployments",
        &crate::support::deployment("d"),
    )
    .await;
    let head = "{\"kind\":\"Scale\",\"apiVersion\":\"autoscaling/v1\",\"metadata\":{\"name\":\"d\",";
    assert_parts(
        &text(&api, scale, &[]).await,
        &[head, "},\"spec\":{\"replicas\":3},\"status\":{\"replicas\":0", "}}\n"],
    );
}

#[tokio::test]
async fn people_get_many_lines_unless_they_ask_for_one() {
    let api = Api::start().await;
    api.post(PODS, &pod("p")).await;
    let one = format!("{PODS}/p");
    for path in [PODS, &one, &format!("{PODS}/none"), "/apis", "/apis/apps/v1"] {
        let plain = text(&api, path, &[]).await;
        assert_eq!(plain.find('\n'), Some(plain.len() - 1), "{plain}");
        let value: Value = serde_json::from_str(&plain).unwrap();
        for agent in ["curl/8.5.0", "Wget/1.21.3", "Mozilla/5.0 (X11; Linux x86_64)"] {
            let many = text(&api, path, &[("user-agent", agent)]).await;
            assert_eq!(serde_json::from_str::<Value>(&many).unwrap(), value, "{agent}");
            assert!(
                many.starts_with("{\n  \"kind\": \"") && many.ends_with("\n}"),
                "{agent}: {many}"
            );
            let asked = text(&api, &format!("{path}?pretty=false"), &[("user-agent", agent)]).await;
            assert_eq!(asked, plain, "{agent}");
        }
        let asked = text(&api, &format!("{path}?pretty=true"), &[("user-agent", "kubectl/v1.36")]).await;
        assert!(asked.starts_with("{\n  \"kind\": \""), "{asked}");
        let other = text(&api, &format!("{path}?pretty=1x"), &[("user-agent", "curl/8.5.0")]).await;
        assert_eq!(other, plain, "what is no boolean is none");
    }
    let list = text(&api, PODS, &[("user-agent", "curl/8.5.0")]).await;
    let parts = [
        "{\n  \"kind\": \"PodList\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"resourceVersion\": ",
        "\n  },\n  \"items\": [\n    {\n      \"metadata\": {\n        \"name\": \"p\",\n",
        "\n    }\n  ]\n}",
    ];
    assert_parts(&list, &parts);
    let empty = text(&api, "/api/v1/secrets", &[("user-agent", "curl/8.5.0")]).await;
    assert!(empty.ends_with("  \"items\": []\n}"), "{empty}");
    // These two are for people only.
    for path in ["/version", "/"] {
        let shown = text(&api, path, &[]).await;
        assert!(shown.starts_with("{\n  \"") && shown.ends_with("\n}"), "{shown}");
    }
    // Watch events have one line each for all clients.
    let path = format!("{PODS}?watch=true");
    let mut frames = Frames::open(&api, &path, "application/json").await;
    assert_eq!(frames.next().await.unwrap()["type"], json!("ADDED"));
}

#[tokio::test]
async fn what_an_older_version_stored_is_listed_like_the_rest() {
    let api = Api::start().await;
    let key = store::Key::new("", "configmaps", "default", "old").unwrap();
    let older = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old", "namespace": "default",
        "resourceVersion": "", "uid": "u"}});
    let write = store::Write::Create {
        key,
        value: store::Value::parse(older.to_string().into_bytes()).unwrap(),
        attributes: store::Attributes::default(),
        within: None,
    };
    api.store.commit(write).await.unwrap();
    let list = text(&api, "/api/v1/namespaces/default/configmaps", &[]).await;
    assert_parts(&list, &["\"items\":[{\"metadata\":{\"name\":\"old\""]);
}
