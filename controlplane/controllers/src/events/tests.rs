use std::{convert::Infallible, sync::Mutex};

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
    let (recorder, writer) = Recorder::new(Arc::new(|| Timestamp::from_second(1_800_000_000).unwrap()));
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
