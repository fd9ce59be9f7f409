//! Graceful shutdown over real connections: requests in progress are finished and long-running ones
//! end. Also the renewal of certificates under connections.
#![allow(clippy::disallowed_methods, reason = "a test's tasks end with its runtime")]

use crate::support::config_map;
use crate::support::served::{LIFETIME, TIMEOUT, connect, get, now, serve, serving};
use axum::body::Body;
use bytes::Bytes;
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http1::SendRequest;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// POST whose body is sent in pieces.
fn slow_post(sender: &mut SendRequest<Body>) -> (mpsc::Sender<Bytes>, JoinHandle<StatusCode>) {
    let (pieces, body) = mpsc::channel::<Bytes>(1);
    let body = Body::from_stream(body.map(Ok::<_, std::convert::Infallible>));
    let request = Request::post(MAPS)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    let answer = sender.send_request(request);
    (pieces, tokio::spawn(async move { answer.await.unwrap().status() }))
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_began() {
    let served = serve(|transport| transport).await;
    let (mut watcher, _) = connect(&served).await;
    let (mut writer, _) = connect(&served).await;
    let (mut prober, _) = connect(&served).await;
    let watch = get(&mut watcher, &format!("{MAPS}?watch=true&resourceVersion=0")).await;
    let mut watch = watch.into_body();
    let body = config_map("late").to_string();
    let (head, tail) = body.split_at(body.len() / 2);
    let (mut pieces, answer) = slow_post(&mut writer);
    pieces.send(Bytes::from(head.to_owned())).await.unwrap();
    served.api.post(MAPS, &config_map("early")).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"early\"") {
        let frame = tokio::time::timeout(TIMEOUT, watch.frame()).await.unwrap();
        seen.extend_from_slice(frame.unwrap().unwrap().data_ref().unwrap());
    }

    served.api.server.stop();
    let probe = get(&mut prober, "/readyz").await;
    assert_eq!(probe.status(), StatusCode::INTERNAL_SERVER_ERROR);
    probe.into_body().collect().await.unwrap();
    let probe = get(&mut prober, "/livez").await;
    assert_eq!(probe.status(), StatusCode::OK, "it still lives");
    probe.into_body().collect().await.unwrap();

    served.api.server.drain();
    let rest = tokio::time::timeout(TIMEOUT, watch.collect()).await.unwrap();
    let rest = rest.expect("the watch ends, it does not break").to_bytes();
    seen.extend_from_slice(&rest);
    for line in seen.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let event: Value = serde_json::from_slice(line).expect("whole events");
        assert_ne!(event["type"], "ERROR", "{event}");
    }
    served.stop.cancel();
    pieces.send(Bytes::from(tail.to_owned())).await.unwrap();
    drop(pieces);
    let code = tokio::time::timeout(TIMEOUT, answer).await.unwrap().unwrap();
    assert_eq!(code, StatusCode::CREATED, "what was under way is done");
    tokio::time::timeout(TIMEOUT, served.serving).await.unwrap().unwrap();
    assert!(
        TcpStream::connect(served.address).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn certificates_are_renewed_under_connections() {
    let served = serve(|transport| transport).await;
    let (mut first, old) = connect(&served).await;
    let begun = get(&mut first, "/version").await;
    begun.into_body().collect().await.unwrap();
    let later = now() + LIFETIME * 9 / 10;
    let renewed = served.pki.keep("apiserver", &serving(), later).unwrap();
    served.transport.renew(&renewed).unwrap();
    let (mut second, new) = connect(&served).await;
    assert_ne!(old, new, "new connections see the new certificate");
    assert_eq!(renewed.to_der().unwrap().0, [new]);
    for sender in [&mut first, &mut second] {
        assert_eq!(get(sender, "/version").await.status(), StatusCode::OK, "old ones go on");
    }
    served.stop.cancel();
    drop((first, second));
    tokio::time::timeout(TIMEOUT, served.serving).await.unwrap().unwrap();
}
