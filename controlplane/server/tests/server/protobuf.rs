//! Answers in protobuf: the same as in JSON, in the envelope and the frames that stock clients read.

use std::io::Read as _;

use crate::support::{Answer, Api, config_map, deployment, pod};
use api::protobuf;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PARTIAL: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

async fn ask(api: &Api, method: Method, path: &str, accept: &str, body: &Value) -> Answer {
    let kind = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    api.request(method, path, &[("accept", accept), ("content-type", kind)], body)
        .await
}

async fn get(api: &Api, path: &str, accept: &str) -> Answer {
    ask(api, Method::GET, path, accept, &Value::Null).await
}

fn decoded(answer: &Answer) -> Value {
    assert_eq!(answer.headers["content-type"], PROTOBUF);
    protobuf::decode(&answer.bytes).unwrap().json
}

/// Removes nulls, which Go omits from JSON and we write.
fn plain(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        if let Value::Object(members) = value {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(strip);
        } else if let Value::Array(items) = value {
            items.iter_mut().for_each(strip);
        }
    }
    strip(&mut value);
    value
}

#[tokio::test]
async fn objects_are_the_same_in_both_encodings() {
    let api = Api::start().await;
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    for (path, name, object) in [
        (PODS, "a", pod("a")),
        (DEPLOYMENTS, "b", deployment("b")),
        (CONFIG_MAPS, "c", config_map("c")),
    ] {
        let created = ask(&api, Method::POST, path, accept, &object).await;
        assert_eq!(created.code, 201);
        let own = format!("{path}/{name}");
        let created = decoded(&created);
        assert_eq!(created["kind"], object["kind"]);
        assert_eq!(created, plain(api.get(&own).await.json()));
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        let patched = decoded(&ask(&api, Method::PATCH, &own, accept, &patch).await);
        assert_eq!(patched["metadata"]["labels"]["x"], "y");
        assert_eq!(
            decoded(&get(&api, &own, "application/vnd.kubernetes.protobuf, */*").await),
            patched
        );
        let replaced = ask(&api, Method::PUT, &own, PROTOBUF, &patched).await;
        assert_eq!(decoded(&replaced)["metadata"]["uid"], patched["metadata"]["uid"]);
        let list = decoded(&get(&api, path, accept).await);
        assert_eq!(list, plain(api.get(path).await.json()));
        let gone = ask(&api, Method::DELETE, &own, accept, &Value::Null).await;
        assert_eq!(gone.code, 200);
        decoded(&gone);
    }
    let missing = get(&api, &format!("{PODS}/none"), PROTOBUF).await;
    assert_eq!(missing.code, 404);
    let status = decoded(&missing);
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["apiVersion"], "v1");
    assert_eq!(status, plain(api.get(&format!("{PODS}/none")).await.json()));
}

#[tokio::test]
async fn parts_of_objects_answer_in_protobuf_too() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let scale = decoded(&get(&api, &format!("{DEPLOYMENTS}/web/scale"), PROTOBUF).await);
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"]),
        (&json!("Scale"), &json!(3))
    );
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = decoded(&ask(&api, Method::POST, path, PROTOBUF, &token).await);
    assert!(token["status"]["token"].is_string(), "{token}");
    api.post(PODS, &pod("a")).await;
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    let bound = ask(&api, Method::POST, &format!("{PODS}/a/binding"), PROTOBUF, &binding).await;
    assert_eq!(decoded(&bound)["status"], "Success");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let evicted = ask(&api, Method::POST, &format!("{PODS}/a/eviction"), PROTOBUF, &eviction).await;
    assert_eq!(decoded(&evicted)["status"], "Success");
    let groups = decoded(&get(&api, "/apis", PROTOBUF).await);
    assert_eq!(groups["kind"], "APIGroupList");
    let resources = decoded(&get(&api, "/api/v1", PROTOBUF).await);
    assert_eq!(resources["kind"], "APIResourceList");
    assert_eq!(resources["resources"], api.get("/api/v1").await.json()["resources"]);
}

#[tokio::test]
async fn long_lists_are_the_same_in_pieces_and_compressed() {
    let api = Api::start().await;
    for index in 0..9 {
        let mut big = config_map(&format!("big-{index}"));
        big["data"]["a"] = json!(format!("{index}").repeat(200_000));
        assert_eq!(api.post(CONFIG_MAPS, &big).await.code, 201);
    }
    let list = get(&api, CONFIG_MAPS, PROTOBUF).await;
    assert!(list.bytes.len() > 1_800_000);
    let json = api.get(CONFIG_MAPS).await.json();
    assert_eq!(decoded(&list), plain(json.clone()));
    for (accept, plain) in [
        (PROTOBUF, list.bytes),
        ("application/json", api.get(CONFIG_MAPS).await.bytes),
    ] {
        let headers = [("accept", accept), ("accept-encoding", "gzip")];
        let zipped = api.request(Method::GET, CONFIG_MAPS, &headers, "").await;
        assert_eq!(zipped.headers["content-encoding"], "gzip");
        assert!(zipped.bytes.len() < 100_000);
        let mut unzipped = Vec::new();
        flate2::read::GzDecoder::new(&*zipped.bytes)
            .read_to_end(&mut unzipped)
            .unwrap();
        assert!(unzipped == plain, "{accept}");
    }
}

#[tokio::test]
async fn metadata_and_tables_are_negotiated_as_upstream_does() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    let whole = plain(api.get(&format!("{PODS}/a")).await.json());
    let partial = decoded(&get(&api, &format!("{PODS}/a"), PARTIAL).await);
    assert_eq!(
        partial,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]})
    );
    let list = decoded(&get(&api, PODS, PARTIAL_LIST).await);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"], json!([{"metadata": whole["metadata"]}]));
    // There are no tables in protobuf: the next that the client takes is it.
    let table = format!("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLE}");
    let table = get(&api, PODS, &table).await;
    assert_eq!(table.headers["content-type"], "application/json");
    assert_eq!(table.json()["kind"], "Table");
    for (path, accept, message) in [
        (
            PODS,
            PARTIAL,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)",
        ),
        (
            "/api/v1/namespaces/default/pods/a",
            PARTIAL_LIST,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Pod)",
        ),
        (
            PODS,
            "application/xml",
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf",
        ),
        (
            "/api/v1/namespaces/default/pods?watch=1",
            "application/yaml",
            "only the following media types are accepted: application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch",
        ),
    ] {
        let refused = get(&api, path, accept).await;
        assert_eq!(refused.code, 406, "{accept}");
        // JSON, which a Status has when the client takes nothing that is served, or YAML; JSON is YAML too.
        let status: Value = serde_yaml::from_slice(&refused.bytes).unwrap();
        assert_eq!(
            (&status["reason"], &status["message"]),
            (&json!("NotAcceptable"), &json!(message))
        );
    }
}

/// Frames of a watch: four bytes of length, then the event.
async fn events(api: &Api, path: &str, accept: &str, count: usize) -> Vec<(String, Value)> {
    let request = http::Request::get(path).header("accept", accept);
    let response = api.send(request.body(axum::body::Body::empty()).unwrap()).await;
    assert_eq!(
        response.headers()["content-type"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let (mut body, mut bytes, mut found) = (response.into_body(), Vec::new(), Vec::new());
    while found.len() < count {
        bytes.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some(frame) = rest.get(..length) else { break };
            found.push(event(frame));
            bytes.drain(..length + 4);
        }
    }
    found
}

/// `{1: type, 2: {1: a body}}`, all shorter than 16 KiB.
fn event(frame: &[u8]) -> (String, Value) {
    fn field(bytes: &[u8], tag: u8) -> (&[u8], &[u8]) {
        assert_eq!(bytes[0], tag);
        let (length, from) = if bytes[1] < 0x80 {
            (usize::from(bytes[1]), 2)
        } else {
            (usize::from(bytes[1] & 0x7f) | usize::from(bytes[2]) << 7, 3)
        };
        bytes[from..].split_at(length)
    }
    let (kind, rest) = field(frame, 0x0a);
    let (object, rest) = field(rest, 0x12);
    assert!(rest.is_empty());
    let (raw, rest) = field(object, 0x0a);
    assert!(rest.is_empty());
    (
        String::from_utf8(kind.to_vec()).unwrap(),
        protobuf::decode(raw).unwrap().json,
    )
}

#[tokio::test(start_paused = true)]
async fn watches_frame_events() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let whole = plain(api.get(&format!("{CONFIG_MAPS}/a")).await.json());
    let revision = api.get(CONFIG_MAPS).await.json()["metadata"]["resourceVersion"].clone();
    let path = format!(
        "{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    );
    let found = events(&api, &path, "application/vnd.kubernetes.protobuf, application/json", 2).await;
    assert_eq!(found[0], ("ADDED".to_owned(), whole.clone()));
    assert_eq!(found[1].0, "BOOKMARK");
    assert_eq!(
        found[1].1,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "resourceVersion": revision, "annotations": {"k8s.io/initial-events-end": "true"}}})
    );
    api.delete(&format!("{CONFIG_MAPS}/a"), "").await;
    let path = format!(
        "{CONFIG_MAPS}?watch=true&resourceVersion={}",
        revision.as_str().unwrap()
    );
    let found = events(&api, &path, &format!("{PROTOBUF};stream=watch"), 1).await;
    assert_eq!(
        (found[0].0.as_str(), &found[0].1["metadata"]["name"]),
        ("DELETED", &json!("a"))
    );
    let found = events(&api, &path, PARTIAL, 1).await;
    assert_eq!(found[0].1["kind"], "PartialObjectMetadata");
    assert_eq!(found[0].1["metadata"]["uid"], whole["metadata"]["uid"]);
}
