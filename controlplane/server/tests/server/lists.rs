//! Lists: selectors, pages, shapes and encodings.

use std::io::Read as _;
use std::time::Duration;

use crate::support::{Api, config_map, pod};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use serde_json::json;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const TABLE: &str =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn pages_show_one_snapshot() {
    let api = Api::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        api.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let first = api.get(&format!("{CONFIG_MAPS}?limit=2")).await.json();
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&format!("{CONFIG_MAPS}/d"), "").await;
    api.post(CONFIG_MAPS, &config_map("cc")).await;
    let mut names: Vec<String> = Vec::new();
    let mut page = first.clone();
    loop {
        assert_eq!(
            page["metadata"]["resourceVersion"],
            first["metadata"]["resourceVersion"]
        );
        let items = page["items"].as_array().unwrap();
        names.extend(
            items
                .iter()
                .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        page = api.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.json();
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn tokens_of_others_are_refused() {
    let api = Api::start().await;
    for (token, because) in [
        ("x", "illegal base64 data at input byte 0"),
        ("e3!x", "illegal base64 data at input byte 2"),
        (
            &URL_SAFE_NO_PAD.encode("abc"),
            "invalid character 'a' looking for beginning of value",
        ),
        (
            &URL_SAFE_NO_PAD.encode("{}"),
            "server does not recognize this encoded version ",
        ),
        (
            &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","start":"a"}"#),
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ),
        (
            &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":1}"#),
            "encoded start key empty (version meta.k8s.io/v1)",
        ),
        (
            &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../secrets"}"#),
            "../secrets",
        ),
    ] {
        let answer = api.get(&format!("{CONFIG_MAPS}?continue={token}")).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message()),
            (
                400,
                format!("invalid continue token: continue key is not valid: {because}")
            )
        );
    }
}

#[tokio::test]
async fn numbers_of_lists_must_be_some() {
    let api = Api::start().await;
    for parameter in ["limit", "timeoutSeconds"] {
        let answer = api.get(&format!("{CONFIG_MAPS}?{parameter}=x")).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message()),
            (400, "strconv.ParseInt: parsing \"x\": invalid syntax".to_owned()),
            "{parameter}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_list_that_is_compacted_go_on_without_its_snapshot() {
    let api = Api::start().await;
    for name in ["a", "b", "c", "d"] {
        api.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let first = api.get(&format!("{CONFIG_MAPS}?limit=1")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    api.delete(&format!("{CONFIG_MAPS}/b"), "").await;
    // Two rounds an hour apart raise the floor over everything so far, and the ring forgets it.
    for _ in 0..3 {
        api.store.maintain().await;
        tokio::time::advance(Duration::from_hours(1)).await;
        api.post(CONFIG_MAPS, &config_map("x")).await;
        api.delete(&format!("{CONFIG_MAPS}/x"), "").await;
    }
    api.store.maintain().await;
    for at in 0..5000 {
        let patch = json!({"metadata": {"labels": {"at": at.to_string()}}});
        api.patch("/api/v1/namespaces/default", "merge-patch+json", &patch)
            .await;
    }
    let expired = api.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await;
    let status = expired.json();
    let remainder = status["metadata"]["continue"].as_str().expect("a token for the rest");
    assert_eq!(
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {"continue": remainder}, "status": "Failure",
            "message": "The provided continue parameter is too old to display a consistent list result. You can start \
                a new list without the continue parameter, or use the continue token in this response to retrieve the \
                remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
                that were created, modified, or deleted between the time the first chunk was returned and now may show \
                up in the list.",
            "reason": "Expired", "code": 410,
        })
    );
    // A client that takes the offer gets the rest as it is now.
    let rest = api
        .get(&format!("{CONFIG_MAPS}?limit=1&continue={remainder}"))
        .await
        .json();
    assert_eq!(rest["items"][0]["metadata"]["name"], "c");
    assert_eq!(rest["metadata"]["resourceVersion"], api.store.revision().to_string());
    let next = rest["metadata"]["continue"].as_str().unwrap();
    let last = api.get(&format!("{CONFIG_MAPS}?limit=1&continue={next}")).await.json();
    assert_eq!(last["items"][0]["metadata"]["name"], "d");
    assert_eq!(last["metadata"]["continue"], json!(null));
}

#[tokio::test]
async fn selectors_choose() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    api.post(PODS, &pod("b")).await;
    let count = async |query: &str| {
        api.get(&format!("{PODS}?{query}")).await.json()["items"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count("labelSelector=app%20in%20(a,c)").await, 1);
    assert_eq!(count("labelSelector=app!%3Da").await, 1);
    assert_eq!(count("fieldSelector=metadata.name%3Da").await, 1);
    assert_eq!(count("fieldSelector=spec.nodeName%3D,status.phase!%3DRunning").await, 2);
    assert_eq!(count("fieldSelector=spec.host%3D").await, 2);
    assert_eq!(count("fieldSelector=spec.host%3Dn1").await, 0);
    assert_eq!(count("fieldSelector=status.podIPs%3D").await, 2, "no pod has it");
    assert_eq!(count("limit=1&labelSelector=app%3Db").await, 1);
    let answer = api.get(&format!("{PODS}?fieldSelector=spec.foo%3Dx")).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (400, "field label not supported: spec.foo")
    );
    assert_eq!(api.get(&format!("{PODS}?labelSelector=!!")).await.code, 400);
}

#[tokio::test]
async fn versions_mean_what_upstream_says() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let version = api.get(CONFIG_MAPS).await.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    api.post(CONFIG_MAPS, &config_map("b")).await;
    let exact = api
        .get(&format!(
            "{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact"
        ))
        .await
        .json();
    assert_eq!(exact["items"].as_array().unwrap().len(), 1);
    let newer = api
        .get(&format!("{CONFIG_MAPS}?resourceVersion={version}"))
        .await
        .json();
    assert_eq!(newer["items"].as_array().unwrap().len(), 2);
    let future = api.get(&format!("{CONFIG_MAPS}?resourceVersion=999999")).await;
    assert_eq!(future.code, 504);
    assert!(
        future
            .message()
            .starts_with("Timeout: Too large resource version: 999999, current: ")
    );
    assert_eq!(
        future.json()["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    let answer = api.get(&format!("{CONFIG_MAPS}?resourceVersionMatch=Exact")).await;
    assert_eq!(answer.code, 422);
    assert_eq!(
        answer.message(),
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden \
         unless resourceVersion is provided"
    );
}

#[tokio::test]
async fn tables_are_for_people() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    let answer = api.request(Method::GET, PODS, &[("accept", TABLE)], "").await.json();
    assert_eq!(
        (&answer["kind"], &answer["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    let columns: Vec<&str> = answer["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        columns.get(..5),
        Some(&["Name", "Ready", "Status", "Restarts", "Age"][..])
    );
    assert_eq!(answer["rows"][0]["cells"][0], "a");
    assert_eq!(answer["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let whole = api
        .request(
            Method::GET,
            &format!("{PODS}/a?includeObject=Object"),
            &[("accept", TABLE)],
            "",
        )
        .await;
    assert_eq!(whole.json()["rows"][0]["object"]["kind"], "Pod");
    for (query, message) in [
        (
            "includeObject=All",
            "Unable to convert to Table as requested: includeObject: Invalid value: \"All\": must be 'Metadata', \
             'Object', 'None', or empty",
        ),
        (
            "export=true",
            "the export parameter, deprecated since v1.14, is no longer supported",
        ),
    ] {
        let path = format!("{PODS}/a?{query}");
        let wrong = api.request(Method::GET, &path, &[("accept", TABLE)], "").await;
        assert_eq!((wrong.code.as_u16(), wrong.message().as_str()), (400, message));
    }
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let answer = api.request(Method::GET, PODS, &[("accept", partial)], "").await.json();
    assert_eq!(
        (&answer["kind"], &answer["items"][0]["spec"]),
        (&json!("PartialObjectMetadataList"), &json!(null))
    );
}

#[tokio::test]
async fn rows_of_pods_that_have_ended_are_marked() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    let row = async || {
        let answer = api.request(Method::GET, PODS, &[("accept", TABLE)], "").await;
        answer.json()["rows"][0].clone()
    };
    assert_eq!(row().await.get("conditions"), None);
    let status = json!({"status": {"phase": "Failed"}});
    api.patch(&format!("{PODS}/a/status"), "merge-patch+json", &status)
        .await;
    let told = json!({"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."});
    assert_eq!(row().await["conditions"], json!([told]));
}

#[tokio::test]
async fn encodings_are_negotiated() {
    let api = Api::start().await;
    let code = async |accept: &str| {
        api.request(Method::GET, CONFIG_MAPS, &[("accept", accept)], "")
            .await
            .code
            .as_u16()
    };
    assert_eq!(code("application/vnd.kubernetes.protobuf,application/json").await, 200);
    assert_eq!(code("*/*").await, 200);
    assert_eq!(code("text/html;q=0.9, */*;q=0.1").await, 200);
    assert_eq!(code("application/xml").await, 406);
    let yaml = api
        .request(Method::GET, CONFIG_MAPS, &[("accept", "application/yaml")], "")
        .await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    let mut big = config_map("big");
    big["data"]["a"] = json!("x".repeat(300_000));
    api.post(CONFIG_MAPS, &big).await;
    let zipped = api
        .request(Method::GET, CONFIG_MAPS, &[("accept-encoding", "gzip")], "")
        .await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert!(zipped.bytes.len() < 10_000);
    let one = format!("{CONFIG_MAPS}/big");
    let zipped = api.request(Method::GET, &one, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert!(zipped.bytes.len() < 10_000);
    let plain = api.get(CONFIG_MAPS).await;
    assert_eq!(plain.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn long_lists_are_whole_in_every_form() {
    let api = Api::start().await;
    let names: Vec<String> = (0..40).map(|number| format!("map-{number:02}")).collect();
    for name in &names {
        let mut map = config_map(name);
        map["metadata"]["annotations"] = json!({ "note": "x".repeat(10_000) });
        assert_eq!(api.post(CONFIG_MAPS, &map).await.code, 201);
    }
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    for (accept, query, items) in [
        ("application/json", "", Some("items")),
        ("application/json", "?pretty=true", Some("items")),
        ("application/yaml", "", None),
        (TABLE, "", Some("rows")),
        (partial, "", Some("items")),
    ] {
        for encoding in ["identity", "gzip"] {
            let (path, case) = (format!("{CONFIG_MAPS}{query}"), format!("{accept} {query} {encoding}"));
            let headers = [("accept", accept), ("accept-encoding", encoding)];
            let answer = api.request(Method::GET, &path, &headers, "").await;
            let mut text = String::new();
            if encoding == "gzip" {
                assert_eq!(answer.headers["content-encoding"], "gzip", "{case}");
                let mut decoder = flate2::read::GzDecoder::new(&*answer.bytes);
                decoder.read_to_string(&mut text).unwrap();
            } else {
                text = answer.text();
            }
            let mut shown: Vec<&str> = text.match_indices("map-").map(|(at, _)| &text[at..at + 6]).collect();
            shown.dedup();
            assert_eq!(shown, names, "{case}");
            if let Some(items) = items {
                let list: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(list[items].as_array().unwrap().len(), names.len(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn answers_over_128_kib_are_compressed() {
    let api = Api::start().await;
    let mut map = config_map("a");
    let mut length = 100_000;
    map["data"]["a"] = json!("x".repeat(length));
    assert_eq!(api.post(CONFIG_MAPS, &map).await.code, 201);
    for (wanted, is_compressed) in [(128 * 1024, false), (128 * 1024 + 1, true)] {
        length += wanted - api.get(CONFIG_MAPS).await.bytes.len();
        map["data"]["a"] = json!("x".repeat(length));
        assert_eq!(api.put(&format!("{CONFIG_MAPS}/a"), &map).await.code, 200);
        assert_eq!(api.get(CONFIG_MAPS).await.bytes.len(), wanted);
        let headers = [("accept-encoding", "gzip")];
        let answer = api.request(Method::GET, CONFIG_MAPS, &headers, "").await;
        assert_eq!(answer.headers.contains_key("content-encoding"), is_compressed);
    }
}

#[tokio::test]
async fn events_have_two_forms() {
    let api = Api::start().await;
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "Because",
        "message": "text", "type": "Normal", "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let answer = api.post("/api/v1/namespaces/default/events", &event).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let other = api
        .get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        .await
        .json();
    assert_eq!(
        (&other["note"], &other["regarding"]["name"]),
        (&json!("text"), &json!("p"))
    );
    let path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp,involvedObject.kind%3DPod";
    assert_eq!(api.get(path).await.json()["items"].as_array().unwrap().len(), 1);
    let list = api.get("/apis/events.k8s.io/v1/events").await.json();
    assert_eq!(
        (&list["kind"], &list["items"][0]["reason"]),
        (&json!("EventList"), &json!("Because"))
    );
}

#[tokio::test]
async fn who_reported_is_shown_empty_by_the_older_form_alone() {
    let api = Api::start().await;
    let event = json!({"metadata": {"name": "e"}, "reason": "Because", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    api.post("/api/v1/namespaces/default/events", &event).await;
    let (older, newer) = (
        "/api/v1/namespaces/default/events/e",
        "/apis/events.k8s.io/v1/namespaces/default/events/e",
    );
    let shown = api.get(newer).await.json();
    for field in ["reportingController", "reportingInstance"] {
        assert_eq!(shown.get(field), None, "{shown}");
    }
    let before = api.get(older).await;
    let put = api.put(newer, &shown).await;
    assert_eq!(put.code, 200, "{}", put.text());
    let after = api.get(older).await;
    assert_eq!(after.text(), before.text());
    for field in ["reportingComponent", "reportingInstance"] {
        assert_eq!(after.json()[field], "", "{}", after.text());
    }
}

#[tokio::test]
async fn answers_to_questions_have_no_table() {
    let api = Api::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    })
    .to_string();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let ask = async |accept: &str| {
        let headers = [("accept", accept), ("content-type", "application/json")];
        api.request(Method::POST, path, &headers, review.clone()).await
    };
    let answer = ask(table).await;
    assert_eq!(answer.code, 406);
    assert_eq!(answer.json()["reason"], "NotAcceptable");
    assert_eq!(ask(TABLE).await.json()["kind"], "SelfSubjectAccessReview");
}

#[tokio::test]
async fn newer_events_are_selected_by_the_names_of_their_fields() {
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let api = Api::start().await;
    for name in ["a", "b"] {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": format!("test/{name}"),
            "reportingInstance": "i", "action": "Do", "reason": "Test", "type": "Normal", "note": "n",
            "regarding": {"kind": "Pod", "namespace": "default", "name": name},
        });
        assert_eq!(api.post(EVENTS, &event).await.code, 201);
    }
    for selector in ["reportingController=test/a", "regarding.name=a,reason=Test"] {
        let found = api.get(&format!("{EVENTS}?fieldSelector={selector}")).await.json();
        assert_eq!(found["items"].as_array().map(Vec::len), Some(1), "{selector}");
        assert_eq!(found["items"][0]["metadata"]["name"], "a");
    }
    let old = api.get(&format!("{EVENTS}?fieldSelector=involvedObject.name=a")).await;
    assert_eq!(old.code, 400);
    assert_eq!(old.message(), "field label not supported: involvedObject.name");
}
