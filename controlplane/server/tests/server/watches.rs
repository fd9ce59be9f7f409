//! Watches, frame by frame.

use std::time::Duration;

use crate::support::served::{TIMEOUT, dial, serve};
use crate::support::{Api, Frames, config_map, pod};
use axum::body::Body;
use controlplane_server::authn::identity::{MASTERS, Source, User};
use futures::TryStreamExt;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(start_paused = true)]
async fn changes_arrive_in_order() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let mut present = Frames::open(&api, &format!("{CONFIG_MAPS}?watch=true"), "application/json").await;
    assert_eq!(present.brief().await, "ADDED a");
    let version = api.get(CONFIG_MAPS).await.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}");
    let mut changes = Frames::open(&api, &path, "application/json").await;
    api.post(CONFIG_MAPS, &config_map("b")).await;
    api.patch(
        &format!("{CONFIG_MAPS}/b"),
        "merge-patch+json",
        &json!({"data": {"z": "1"}}),
    )
    .await;
    api.delete(&format!("{CONFIG_MAPS}/b"), "").await;
    for frames in [&mut present, &mut changes] {
        assert_eq!(frames.brief().await, "ADDED b");
        assert_eq!(frames.brief().await, "MODIFIED b");
        let gone = frames.next().await.unwrap();
        assert_eq!(gone["type"], "DELETED");
        let revision: u64 = gone["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(revision, api.store.revision(), "a deletion carries its own revision");
    }
}

#[tokio::test(start_paused = true)]
async fn selectors_make_changes_into_comings_and_goings() {
    let api = Api::start().await;
    let path = format!("{PODS}?watch=true&fieldSelector=spec.nodeName%3Dn1&resourceVersion=0");
    let mut on_node = Frames::open(&api, &path, "application/json").await;
    let path = format!("{PODS}?watch=true&labelSelector=app%3Da&resourceVersion=0");
    let mut labelled = Frames::open(&api, &path, "application/json").await;
    api.post(PODS, &pod("a")).await;
    assert_eq!(labelled.brief().await, "ADDED a");
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding).await;
    assert_eq!(on_node.brief().await, "ADDED a");
    assert_eq!(labelled.brief().await, "MODIFIED a");
    api.patch(
        &format!("{PODS}/a"),
        "merge-patch+json",
        &json!({"metadata": {"labels": {"app": "z"}}}),
    )
    .await;
    assert_eq!(on_node.brief().await, "MODIFIED a");
    let left = labelled.next().await.unwrap();
    assert_eq!(
        (&left["type"], &left["object"]["metadata"]["labels"]["app"]),
        (&json!("DELETED"), &json!("a"))
    );
    let revision = left["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(revision, api.store.revision().to_string());
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_marked_bookmark() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let path = format!(
        "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut frames = Frames::open(&api, &path, "application/json").await;
    assert_eq!(frames.brief().await, "ADDED a");
    let bookmark = frames.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(bookmark["object"]["metadata"].get("creationTimestamp"), None);
    let later = frames.next().await.unwrap();
    assert_eq!(
        (&later["type"], &later["object"]["metadata"]["annotations"]),
        (&json!("BOOKMARK"), &json!(null))
    );
    let answer = api
        .get(&format!("{CONFIG_MAPS}?watch=true&sendInitialEvents=true"))
        .await;
    assert_eq!(answer.code, 422);
    assert_eq!(
        answer.message(),
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
         resourceVersionMatch to NotOlderThan"
    );
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_revision_to_come_can_be_watched() {
    let api = Api::start().await;
    let ahead = api.store.revision() + 2;
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={ahead}&allowWatchBookmarks=true&timeoutSeconds=200");
    let began = tokio::time::Instant::now();
    let mut frames = Frames::open(&api, &path, "application/json").await;
    assert_eq!(began.elapsed().as_secs(), 0, "it is not waited for");
    tokio::time::sleep(Duration::from_secs(70)).await;
    for name in ["a", "b", "c"] {
        api.post(CONFIG_MAPS, &config_map(name)).await;
    }
    assert_eq!(
        frames.brief().await,
        "ADDED c",
        "neither a bookmark nor what came before"
    );
    let bookmark = frames.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"],
        api.store.revision().to_string()
    );
}

#[tokio::test(start_paused = true)]
async fn the_present_at_a_revision_to_come_is_waited_for_and_then_refused() {
    let api = Api::start().await;
    let current = api.store.revision();
    let next = current + 1;
    let path = format!(
        "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={next}"
    );
    let began = tokio::time::Instant::now();
    let mut frames = Frames::open(&api, &path, "application/json").await;
    let error = frames.next().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(
        error,
        json!({"type": "ERROR", "object": {
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "Timeout", "code": 504,
            "message": format!("Timeout: Too large resource version: {next}, current: {current}"),
            "details": {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            },
        }})
    );
    assert_eq!(frames.brief().await, "end");
    let change = config_map("a");
    let (mut frames, _) = tokio::join!(
        Frames::open(&api, &path, "application/json"),
        api.post(CONFIG_MAPS, &change)
    );
    assert_eq!(frames.brief().await, "ADDED a", "it came in time");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_time_is_over() {
    let api = Api::start().await;
    let began = tokio::time::Instant::now();
    let path = format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=7&resourceVersion=0");
    let mut frames = Frames::open(&api, &path, "application/json").await;
    assert_eq!(frames.brief().await, "end");
    assert_eq!(began.elapsed().as_secs(), 7);
    let mut frames = Frames::open(&api, &format!("{CONFIG_MAPS}?watch=true"), "application/json").await;
    assert_eq!(frames.brief().await, "end");
    let lasted = began.elapsed().saturating_sub(Duration::from_secs(7));
    assert!((1800..=3600).contains(&lasted.as_secs()), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn attack_no_watch_is_asked_for_beyond_the_end_of_time() {
    let api = Api::start().await;
    for seconds in [i64::MAX, i64::MAX - 1, i64::MAX / 1_000_000_000 + 1] {
        let path = format!("{CONFIG_MAPS}?watch=true&timeoutSeconds={seconds}&resourceVersion=0");
        let mut frames = Frames::open(&api, &path, "application/json").await;
        let change = config_map("a");
        api.post(CONFIG_MAPS, &change).await;
        assert_eq!(frames.brief().await, "ADDED a", "{seconds}");
        api.delete(&format!("{CONFIG_MAPS}/a"), "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_compacted_is_told_as_expired() {
    let api = Api::start().await;
    for name in ["a", "b", "c"] {
        api.post(CONFIG_MAPS, &config_map(name)).await;
        api.delete(&format!("{CONFIG_MAPS}/{name}"), "").await;
    }
    // Two rounds an hour apart raise the floor over everything so far.
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
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion=5");
    let mut frames = Frames::open(&api, &path, "application/json").await;
    let error = frames.next().await.unwrap();
    assert_eq!(
        (&error["type"], &error["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(error["object"]["reason"], "Expired");
    assert!(
        error["object"]["message"]
            .as_str()
            .unwrap()
            .starts_with("too old resource version: 5 (")
    );
    assert_eq!(frames.brief().await, "end");
    let path = format!("{CONFIG_MAPS}?resourceVersion=5&resourceVersionMatch=Exact");
    assert_eq!(
        api.get(&path).await.message(),
        "The resourceVersion for the provided list is too old."
    );
}

#[tokio::test(start_paused = true)]
async fn tables_can_be_watched() {
    let api = Api::start().await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut frames = Frames::open(&api, &format!("{PODS}?watch=true"), table).await;
    api.post(PODS, &pod("a")).await;
    api.post(PODS, &pod("b")).await;
    let first = frames.next().await.unwrap()["object"].clone();
    assert_eq!(
        (&first["kind"], &first["rows"][0]["cells"][0]),
        (&json!("Table"), &json!("a"))
    );
    assert!(!first["columnDefinitions"].as_array().unwrap().is_empty());
    let second = frames.next().await.unwrap()["object"].clone();
    assert!(second["columnDefinitions"].as_array().unwrap().is_empty());
    let path = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut frames = Frames::open(&api, &format!("{PODS}?{path}&includeObject=None"), table).await;
    for name in ["a", "b"] {
        let row = frames.next().await.unwrap()["object"]["rows"][0].clone();
        assert_eq!((&row["cells"][0], &row["object"]), (&json!(name), &Value::Null));
    }
    let end = frames.next().await.unwrap();
    assert_eq!(
        (&end["type"], &end["object"]["kind"]),
        (&json!("BOOKMARK"), &json!("Table"))
    );
    let row = &end["object"]["rows"][0];
    assert_eq!(
        (&row["cells"][0], &row["object"]["kind"]),
        (&json!(""), &json!("PartialObjectMetadata"))
    );
    assert_eq!(
        row["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test(start_paused = true)]
async fn one_object_can_be_watched_by_its_path() {
    let api = Api::start().await;
    for path in [
        "/api/v1/watch/namespaces/kube-public",
        "/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dkube-public",
    ] {
        let mut frames = Frames::open(&api, path, "application/json").await;
        assert_eq!(frames.brief().await, "ADDED kube-public", "{path}");
        api.patch(
            "/api/v1/namespaces/default",
            "merge-patch+json",
            &json!({"metadata": {"labels": {"p": path.len().to_string()}}}),
        )
        .await;
        api.patch(
            "/api/v1/namespaces/kube-public",
            "merge-patch+json",
            &json!({"metadata": {"labels": {"p": path.len().to_string()}}}),
        )
        .await;
        assert_eq!(frames.brief().await, "MODIFIED kube-public", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_librarys_watcher_keeps_up() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(api.client());
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut seen = Box::pin(watcher(maps.clone(), config).applied_objects());
        assert_eq!(
            seen.try_next().await.unwrap().unwrap().metadata.name.as_deref(),
            Some("a")
        );
        api.post(CONFIG_MAPS, &config_map("b")).await;
        assert_eq!(
            seen.try_next().await.unwrap().unwrap().metadata.name.as_deref(),
            Some("b")
        );
        api.delete(&format!("{CONFIG_MAPS}/b"), "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_40_a_watcher_that_does_not_read_misses_nothing_or_is_told() {
    // More than the ring of recent changes holds.
    const CHANGES: usize = 5000;
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let change = async |round: usize| {
        for at in 0..CHANGES {
            let patch = json!({"data": {"at": format!("{round}/{at}")}});
            let answer = api.patch(&format!("{CONFIG_MAPS}/a"), "merge-patch+json", &patch).await;
            assert_eq!(answer.code, 200);
        }
    };
    let path = format!(
        "{CONFIG_MAPS}?watch=true&resourceVersion={}&timeoutSeconds=86400",
        api.store.revision()
    );
    let mut slow = Frames::open(&api, &path, "application/json").await;
    let mut never = Frames::open(&api, &path, "application/json").await;
    change(1).await;
    let mut last = 0;
    for at in 0..CHANGES {
        let event = slow.next().await.unwrap();
        assert_eq!(event["object"]["data"]["at"], format!("1/{at}"), "{event}");
        let revision = event["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap();
        assert!(revision > last, "{revision} after {last}");
        last = revision;
    }
    change(2).await;
    for _ in 0..3 {
        api.store.maintain().await;
        tokio::time::advance(Duration::from_hours(1)).await;
        change(3).await;
    }
    api.store.maintain().await;
    let error = never.next().await.unwrap();
    assert_eq!(
        (&error["type"], &error["object"]["code"]),
        (&json!("ERROR"), &json!(410)),
        "{error}"
    );
    assert_eq!(never.brief().await, "end");
}

#[tokio::test]
async fn the_old_paths_of_watches_serve_nothing_else() {
    let api = Api::start().await;
    for (method, path) in [
        (Method::POST, "/api/v1/watch/namespaces/default/configmaps"),
        (Method::DELETE, "/api/v1/watch/namespaces/default/configmaps/a"),
        (Method::PATCH, "/api/v1/watch/namespaces/default/configmaps/a"),
    ] {
        let answer = api.request(method, path, &[], "").await;
        assert_eq!(answer.code, 405, "{}", answer.text());
    }
    let answer = api.get("/api/v1/watch/nothing").await;
    assert_eq!(answer.code, 404, "{}", answer.text());
}

#[tokio::test(start_paused = true)]
async fn what_the_watches_of_one_user_hold_unread_is_bounded() {
    let api = Api::start().await;
    let mut large = config_map("large");
    large["data"]["a"] = json!("x".repeat(1_000_000));
    api.post(CONFIG_MAPS, &large).await;
    let open = async |user: &str| {
        let request = Request::builder().uri(format!("{CONFIG_MAPS}?watch=true"));
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Source("10.0.0.9:1".parse().unwrap()));
        api.send_as(User::new(user, [MASTERS]), request).await.into_body()
    };
    let soon = Duration::from_secs(1);
    let mut unread = Vec::new();
    let mut waiting = loop {
        let mut body = open("noisy").await;
        match tokio::time::timeout(soon, body.frame()).await {
            Ok(frame) => unread.push(frame.unwrap().unwrap()),
            Err(_) => break body,
        }
        assert!(unread.len() < 80, "there is no bound");
    };
    assert!(unread.len() > 50, "{}", unread.len());
    let mut other = open("other").await;
    let frame = tokio::time::timeout(soon, other.frame()).await;
    assert!(frame.is_ok(), "somebody else's watch goes on");
    let mut inside = Frames::open(&api, &format!("{CONFIG_MAPS}?watch=true"), "application/json").await;
    assert_eq!(inside.brief().await, "ADDED large");
    unread.pop();
    let frame = tokio::time::timeout(soon, waiting.frame()).await;
    assert!(frame.is_ok(), "what is read makes room");
}

/// The next message of WebSocket: its first byte and its payload.
async fn message(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let message = async {
        let first = stream.read_u8().await.unwrap();
        let length = match stream.read_u8().await.unwrap() {
            126 => usize::from(stream.read_u16().await.unwrap()),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        (first, payload)
    };
    tokio::time::timeout(TIMEOUT, message).await.expect("a message")
}

/// The next message, which is an event: its type and the name of its object.
async fn told(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let (first, text) = message(stream).await;
    assert_eq!(first, 0x81, "a text");
    let event: Value = serde_json::from_slice(&text).unwrap();
    let word = |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    format!("{} {}", word("/type"), word("/object/metadata/name"))
}

#[tokio::test]
async fn a_client_of_websocket_gets_every_event_as_a_message() {
    let served = serve(|transport| transport).await;
    for name in ["a", "b"] {
        served.api.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let mut stream = dial(&served, Some("root"), "http/1.1").await.unwrap();
    let request = format!(
        "GET {CONFIG_MAPS}?watch=true HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: base64.binary.k8s.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    for line in [
        "http/1.1 101 switching protocols",
        "upgrade: websocket",
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
        "sec-websocket-protocol: base64.binary.k8s.io",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(told(&mut stream).await, "ADDED a");
    assert_eq!(told(&mut stream).await, "ADDED b");
    let ping = [0x89, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2];
    stream.write_all(&ping).await.unwrap();
    assert_eq!(message(&mut stream).await, (0x8a, b"hi".to_vec()));
    served.api.delete(&format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(told(&mut stream).await, "DELETED a");
    let close = [0x88, 0x80, 1, 2, 3, 4];
    stream.write_all(&close).await.unwrap();
    assert_eq!(message(&mut stream).await, (0x88, Vec::new()), "it is echoed");
    let end = tokio::time::timeout(TIMEOUT, stream.read_u8()).await.expect("an end");
    assert!(end.is_err());
}
