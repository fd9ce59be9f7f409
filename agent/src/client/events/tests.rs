use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_plan::Timestamp;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{CROWD, Kind, Known, MAX_DELAY, MAX_DELAY_IN_CROWDS, REMEMBERED, channel};

#[tokio::test(start_paused = true)]
async fn events_give_way_to_pods_that_somebody_waits_for_but_not_for_ever() {
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let (recorder, mut sender) = channel(client, "node-1", Arc::new(Timestamp::now));
    let tell = |message: &str| recorder.node(&Node::default(), Kind::Normal, "Test", message.to_owned());

    let (first, second) = (recorder.urgent(), recorder.urgent());
    assert!(recorder.is_urgent());
    tell("one");
    let mut next = Box::pin(sender.next());
    let little = Duration::from_millis(300);
    assert!(timeout(little, &mut next).await.is_err());
    drop(first);
    assert!(timeout(little, &mut next).await.is_err());
    drop(second);
    assert!(!recorder.is_urgent());
    let now = Instant::now();
    assert_eq!(next.await.unwrap().message, "one");
    assert_eq!(now.elapsed(), Duration::ZERO);

    let _kept = recorder.urgent();
    tell("two");
    assert_eq!(sender.next().await.unwrap().message, "two");
    assert_eq!(now.elapsed(), MAX_DELAY);

    // Events are delayed for longer for many starting pods, until few of them are left.
    let mut crowd: Vec<_> = (0..=CROWD).map(|_| recorder.urgent()).collect();
    assert!(recorder.is_crowded());
    let now = Instant::now();
    tell("three");
    assert_eq!(sender.next().await.unwrap().message, "three");
    assert_eq!(now.elapsed(), MAX_DELAY_IN_CROWDS);
    tell("four");
    let mut next = Box::pin(sender.next());
    assert!(timeout(MAX_DELAY * 2, &mut next).await.is_err());
    crowd.truncate(CROWD - 1);
    assert!(!recorder.is_crowded());
    assert_eq!(timeout(little, next).await.unwrap().unwrap().message, "four");
}

#[tokio::test]
async fn an_event_whose_name_is_taken_is_told_under_another() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let answer = move |Json(event): Json<Value>| async move {
        let mut seen = seen.lock().unwrap();
        seen.push(event["metadata"]["name"].clone());
        if seen.len() > 1 {
            return (StatusCode::CREATED, Json(event));
        }
        let status = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409});
        (StatusCode::CONFLICT, Json(status))
    };
    let api = Router::new().route("/api/v1/namespaces/default/events", post(answer));
    let at = Timestamp::UNIX_EPOCH;
    let (recorder, mut sender) = channel(kube::Client::new(api, "default"), "node-1", Arc::new(move || at));
    let mut node = Node::default();
    node.metadata.name = Some("node-1".to_owned());
    recorder.node(&node, Kind::Normal, "Test", "told".to_owned());
    let happening = sender.next().await.unwrap();
    sender.publish(happening).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), ["node-1.1", "node-1.2"]);
}

#[tokio::test]
async fn an_event_has_its_annotations() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let answer = move |Json(event): Json<Value>| async move {
        seen.lock().unwrap().push(event["metadata"]["annotations"].clone());
        (StatusCode::CREATED, Json(event))
    };
    let api = Router::new().route("/api/v1/namespaces/default/events", post(answer));
    let (recorder, mut sender) = channel(kube::Client::new(api, "default"), "node-1", Arc::new(Timestamp::now));
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "1"}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let annotations = BTreeMap::from([("starved_resource".to_owned(), "memory".to_owned())]);
    recorder.annotated(&pod, Kind::Warning, "Evicted", "told".to_owned(), annotations);
    recorder.pod(&pod, None, Kind::Normal, "Test", "told".to_owned());
    for _ in 0..2 {
        let happening = sender.next().await.unwrap();
        sender.publish(happening).await.unwrap();
    }
    let expected = [json!({"starved_resource": "memory"}), Value::Null];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_told_yet_is_told_before_the_agent_ends() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let answer = move |Json(event): Json<Value>| async move {
        seen.lock().unwrap().push(event["message"].clone());
        (StatusCode::CREATED, Json(event))
    };
    let api = Router::new().route("/api/v1/namespaces/default/events", post(answer));
    let (recorder, sender) = channel(kube::Client::new(api, "default"), "node-1", Arc::new(Timestamp::now));
    let mut telling = JoinSet::new();
    telling.spawn(sender.run());
    let _kept = recorder.urgent();
    for message in ["one", "two"] {
        recorder.node(&Node::default(), Kind::Normal, "Test", message.to_owned());
    }
    let now = Instant::now();
    recorder.settle(MAX_DELAY).await;
    assert_eq!(*asked.lock().unwrap(), ["one", "two"]);
    assert!(now.elapsed() < MAX_DELAY);
}

#[tokio::test]
async fn the_latest_events_are_remembered_however_many_come() {
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let (_recorder, mut sender) = channel(client, "node-1", Arc::new(Timestamp::now));
    for number in 0..REMEMBERED * 3 {
        let known = Known {
            name: String::new(),
            namespace: String::new(),
            count: 1,
            last: Timestamp::from_second(number.try_into().unwrap()).unwrap(),
        };
        sender.remember(number.to_string(), known);
        assert!(sender.known.contains_key(&number.to_string()) && sender.known.len() <= REMEMBERED);
    }
    assert!(
        sender
            .known
            .contains_key(&(REMEMBERED * 3 - REMEMBERED / 3).to_string())
    );
}
