use std::convert::Infallible;
use std::sync::Mutex;

use controlplane_plan::step::Severity;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_crowd_is_told_of_one_by_one_and_nobody_is_forgotten() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let (seen, begin) = (Arc::clone(&written), Instant::now());
    let server = tower::service_fn(move |_: Request<Body>| {
        seen.lock().unwrap().push(begin.elapsed());
        let made = json!({ "metadata": { "name": "it", "namespace": "default", "uid": "u", "resourceVersion": "5" } });
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(
            made.to_string().into_bytes(),
        ))))
    });
    let client = kube::Client::new(server, "default");
    let clock = Arc::new(|| Timestamp::from_second(1_800_000_000).unwrap());
    let (recorder, writer) = Recorder::new(clock, "m".into(), CancellationToken::new());
    let crowd = AT_ONCE + 10;
    for number in 0..crowd {
        let about = ObjectReference {
            name: Some(format!("pod-{number}")),
            ..ObjectReference::default()
        };
        let note = Note {
            about,
            severity: Severity::Normal,
            reason: "Test",
            message: "told".to_owned(),
        };
        recorder.note("test", Some(note));
    }
    drop(recorder);
    writer.run(Arc::new(move |_| client.clone())).await;
    let written = written.lock().unwrap().clone();
    let late: Vec<_> = written.iter().filter(|at| **at > DELAY).collect();
    assert_eq!(written.len(), crowd as usize, "{written:?}");
    assert_eq!(late.len(), 10, "{written:?}");
    assert!(late.is_sorted_by(|one, next| **next >= **one + EACH), "{written:?}");
}

/// A server with one pod and no node, which records events; `refused` is cancelled when the pod's
/// status says that it is unschedulable.
fn server_of_one_pod(told: Arc<Mutex<Vec<String>>>, refused: CancellationToken) -> kube::Client {
    let server = tower::service_fn(move |request: Request<Body>| {
        let (told, refused) = (Arc::clone(&told), refused.clone());
        async move {
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
                return std::future::pending().await;
            }
            let pod = json!({ "metadata": {
                "name": "it", "namespace": "default", "uid": "u", "resourceVersion": "5",
            }, "spec": { "schedulerName": SCHEDULER, "containers": [{ "name": "a", "image": "a" }] } });
            let reply = match head.method {
                Method::GET if path == "/api/v1/pods" => {
                    json!({ "metadata": { "resourceVersion": "5" }, "items": [pod] })
                }
                Method::GET => json!({ "metadata": { "resourceVersion": "5" }, "items": [] }),
                _ if path.ends_with("/events") => {
                    let body = body.collect_bytes().await.unwrap();
                    told.lock().unwrap().push(String::from_utf8(body.to_vec()).unwrap());
                    pod
                }
                _ => {
                    if path.ends_with("/pods/it/status") {
                        refused.cancel();
                    }
                    pod
                }
            };
            let reply = Response::new(Body::from(reply.to_string().into_bytes()));
            Ok::<_, Infallible>(reply)
        }
    });
    kube::Client::new(server, "default")
}

#[tokio::test(start_paused = true)]
async fn what_was_told_before_the_end_is_written_at_the_end() {
    let (told, refused) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let client = server_of_one_pod(Arc::clone(&told), refused.clone());
    let clients: crate::Clients = Arc::new(move |_, _| client.clone());
    let begin = Instant::now();
    let ended = crate::run(clients, crate::Options::default(), refused).await;
    assert!(matches!(ended, Err(crate::Error::Cancelled)));
    assert!(begin.elapsed() < DELAY, "nothing waited: {:?}", begin.elapsed());
    let told = told.lock().unwrap().concat();
    assert!(told.contains("FailedScheduling"), "{told}");
}

#[test]
fn many_events_about_one_object_become_one_and_then_none() {
    let clock = Arc::new(Timestamp::now);
    let (_recorder, mut writer) = Recorder::new(clock, "m".into(), CancellationToken::new());
    let mut tell = |component: &'static str, number: u32, second: i64| {
        let about = ObjectReference {
            uid: Some("u".to_owned()),
            ..ObjectReference::default()
        };
        let note = Note {
            about,
            severity: Severity::Normal,
            reason: "Test",
            message: format!("pod-{number}"),
        };
        let mut waiting = Waiting {
            component,
            note,
            at: Timestamp::from_second(1_800_000_000 + second).unwrap(),
            made: Instant::now(),
        };
        let admitted = writer.admit(&mut waiting);
        admitted.map(|_| waiting.note.message)
    };
    let combined = |number: u32| format!("{COMBINED}pod-{number}");
    let told: Vec<String> = (0..40).filter_map(|number| tell("test", number, 0)).collect();
    let expected: Vec<String> = (0..9)
        .map(|number| format!("pod-{number}"))
        .chain((9..25).map(combined))
        .collect();
    assert_eq!(told, expected);
    assert_eq!(tell("test", 40, 299), None);
    assert_eq!(tell("test", 41, 601), Some(combined(41)));
    assert_eq!(
        tell("test", 42, 1500),
        Some("pod-42".to_owned()),
        "after ten quiet minutes"
    );
    assert_eq!(tell("other", 42, 1500), Some("pod-42".to_owned()));
    assert_eq!((0..40).filter_map(|number| tell(SCHEDULER, number, 1500)).count(), 40);
}

/// Source of an event: the scheduler's as in upstream's newer recorder, the others' as in its older
/// one.
#[test]
fn events_say_who_tells_them_and_what_it_does() {
    let told = |component: &str, reason: &'static str| {
        let note = Note {
            about: ObjectReference::default(),
            severity: Severity::Normal,
            reason,
            message: "told".to_owned(),
        };
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let event = event(component, "node-1.example.com", &note, &json!({ "name": "it" }), at);
        ["reportingComponent", "reportingInstance", "action", "source"]
            .map(|field| event[field].to_string())
            .join(" ")
    };
    for (component, reason, expected) in [
        (SCHEDULER, "Scheduled", r#""Binding" {}"#),
        (SCHEDULER, "FailedScheduling", r#""Scheduling" {}"#),
        (SCHEDULER, "Preempted", r#""Preempting" {}"#),
    ] {
        let who = r#""default-scheduler" "default-scheduler-node-1.example.com""#;
        assert_eq!(told(component, reason), format!("{who} {expected}"));
    }
    assert_eq!(
        told("replicaset-controller", "SuccessfulCreate"),
        r#""replicaset-controller" "" null {"component":"replicaset-controller"}"#
    );
}

#[test]
fn taint_eviction_tells_of_evictions_itself() {
    let (recorder, mut writer) = Recorder::new(Arc::new(Timestamp::now), "m".into(), CancellationToken::new());
    let mut source = |reason: &'static str| {
        let note = Note {
            about: ObjectReference::default(),
            severity: Severity::Normal,
            reason,
            message: "told".to_owned(),
        };
        recorder.note("node-controller", Some(note));
        writer.receiver.try_recv().unwrap().component
    };
    assert_eq!(source(EVICTED), TAINT_EVICTION);
    assert_eq!(source("NodeNotReady"), "node-controller");
}
