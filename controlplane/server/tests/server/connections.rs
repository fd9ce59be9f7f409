//! Clients that hold connections or flood them, and the effect on other clients.
#![allow(clippy::disallowed_methods, reason = "a test's tasks end with its runtime")]

use crate::support::served::{Served, TIMEOUT, connect, dial, get, serve, serve_api, speak};
use crate::support::{Api, pod};
use axum::body::Body;
use controlplane_server::node::agents::{Agent, AgentError, Agents, Answer};
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LISTS: &str = "/api/v1/namespaces";

async fn answers(sender: &mut SendRequest<Body>, path: &str) -> StatusCode {
    let answer = tokio::time::timeout(TIMEOUT, get(sender, path))
        .await
        .expect("an answer");
    let code = answer.status();
    answer.into_body().collect().await.unwrap();
    code
}

/// Another client gets an answer over its own connection.
async fn others_are_served(served: &Served) {
    let dialled = tokio::time::timeout(TIMEOUT, connect(served)).await;
    let (mut sender, _) = dialled.expect("a connection");
    assert_eq!(answers(&mut sender, LISTS).await, StatusCode::OK);
}

#[tokio::test]
async fn attack_26_idle_strangers_keep_nobody_out() {
    let served = serve(|transport| transport.with_connections(4)).await;
    let (mut known, _) = connect(&served).await;
    assert_eq!(answers(&mut known, LISTS).await, StatusCode::OK);
    // Some clients send nothing, some stall after the TLS handshake, some make anonymous requests
    // and stay.
    let mut silent = Vec::new();
    let mut greeted = Vec::new();
    let mut asked = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
        greeted.push(dial(&served, None, "http/1.1").await.unwrap());
        let mut sender = speak(dial(&served, None, "http/1.1").await.unwrap()).await;
        assert_eq!(answers(&mut sender, "/version").await, StatusCode::OK);
        asked.push(sender);
    }
    for _ in 0..3 {
        others_are_served(&served).await;
    }
    assert_eq!(answers(&mut known, LISTS).await, StatusCode::OK, "who is known stays");
    let mut byte = [0];
    let first = tokio::time::timeout(TIMEOUT, silent[0].read(&mut byte))
        .await
        .expect("the oldest is shed");
    assert!(matches!(first, Ok(0) | Err(_)));
}

#[tokio::test]
async fn attack_26_who_shows_a_token_is_no_stranger() {
    let served = serve(|transport| transport.with_connections(2)).await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let made = served.api.post(path, &serde_json::json!({})).await.json();
    let token = made["status"]["token"].as_str().unwrap().to_owned();
    let mut bearer = speak(dial(&served, None, "http/1.1").await.unwrap()).await;
    let ask = || {
        Request::get("/version")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {token}"))
            .body(Body::empty())
            .unwrap()
    };
    let answer = bearer.send_request(ask()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    answer.into_body().collect().await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..4 {
        strangers.push(dial(&served, None, "http/1.1").await.unwrap());
    }
    assert_eq!(bearer.send_request(ask()).await.unwrap().status(), StatusCode::OK);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// GET of the root of localhost, compressed.
const GET: &[u8] = b"\x82\x84\x87\x41\x09localhost";

/// Sends until the server closes the connection; returns the number of bytes it took.
async fn flood(served: &Served, mut next: impl FnMut(u32) -> Vec<u8>) -> usize {
    let stream = dial(served, None, "h2").await.unwrap();
    let (mut from, mut to) = tokio::io::split(stream);
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 14];
        while let Ok(1..) = from.read(&mut buffer).await {}
    });
    to.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    to.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    let mut sent = 0;
    for number in 0..1_000_000_u32 {
        let bytes = next(number);
        sent += bytes.len();
        if reader.is_finished() || to.write_all(&bytes).await.is_err() {
            return sent;
        }
    }
    panic!("{sent} bytes, and the server goes on");
}

#[tokio::test]
async fn attack_26_streams_that_are_reset_at_once_end_the_connection() {
    let served = serve(|transport| transport).await;
    let flooded = flood(&served, |number| {
        let stream = number * 2 + 1;
        let mut bytes = frame(HEADERS, END_STREAM | END_HEADERS, stream, GET);
        bytes.extend(frame(RESET, 0, stream, &8_u32.to_be_bytes()));
        bytes
    });
    let (sent, ()) = futures::join!(flooded, others_are_served(&served));
    assert!(sent < 16 << 20, "{sent} bytes");
    others_are_served(&served).await;
}

#[tokio::test]
async fn attack_26_headers_without_an_end_end_the_connection() {
    let served = serve(|transport| transport).await;
    let flooded = flood(&served, |number| {
        if number == 0 {
            return frame(HEADERS, END_STREAM, 1, GET);
        }
        // A header that is new each time: "x: " and sixteen thousand letters.
        let mut header = b"\x00\x01x\x7f\x81\x7c".to_vec();
        header.extend(vec![b'a'; 127 + 1 + 124 * 128]);
        frame(CONTINUATION, 0, 1, &header)
    });
    let (sent, ()) = futures::join!(flooded, others_are_served(&served));
    assert!(sent < 16 << 20, "{sent} bytes");
    others_are_served(&served).await;
}

/// Status of the answer to a request with so many bytes of headers, over HTTP/1.1 or HTTP/2.
async fn with_headers(served: &Served, user: Option<&str>, protocol: &str, bytes: usize) -> StatusCode {
    let stream = dial(served, user, protocol).await.unwrap();
    let mut request = Request::get("https://localhost/version");
    for at in 0..bytes / 4096 {
        request = request.header(format!("x-{at}"), "a".repeat(4096));
    }
    let request = request.header("host", "localhost").body(Body::empty()).unwrap();
    let answer = if protocol == "h2" {
        let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(u32::MAX)
            .handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(async move { connection.await.ok() });
        sender.send_request(request).await
    } else {
        speak(stream).await.send_request(request).await
    };
    // The connection of a client that sends too much may be closed before it has sent all.
    answer.map_or(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, |answer| answer.status())
}

#[tokio::test]
async fn long_headers_are_taken_from_who_is_known() {
    let served = serve(|transport| transport).await;
    let (taken, refused) = (StatusCode::OK, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    for (user, protocol, kib, expected) in [
        (Some("root"), "h2", 900, taken),
        (Some("root"), "h2", 1100, refused),
        (Some("root"), "http/1.1", 200, taken),
        (Some("root"), "http/1.1", 700, refused),
        (None, "h2", 40, taken),
        (None, "h2", 100, refused),
        (None, "http/1.1", 40, taken),
        (None, "http/1.1", 200, refused),
    ] {
        let code = with_headers(&served, user, protocol, kib << 10).await;
        assert_eq!(code, expected, "{user:?} {protocol} {kib}");
    }
}

/// Reads until the text occurs.
async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), wanted: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(wanted) {
        let read = tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await;
        let count = read.unwrap_or_else(|_late| panic!("only {text}")).unwrap();
        assert!(count > 0, "only {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[tokio::test]
async fn an_early_answer_leaves_its_connection_usable_or_says_that_it_is_over() {
    let served = serve(|transport| transport).await;
    for (head, sent, over) in [
        ("Content-Length: 100000", 100_000, false),
        ("Content-Length: 9000000", 300_000, true),
        ("Content-Length: 9\r\nExpect: 100-continue", 0, true),
    ] {
        let mut stream = dial(&served, None, "http/1.1").await.unwrap();
        let request = format!("POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; sent]).await.unwrap();
        let told = read_until(&mut stream, "\r\n\r\n").await;
        assert!(told.starts_with("HTTP/1.1 403"), "{told}");
        assert_eq!(told.to_ascii_lowercase().contains("connection: close"), over, "{told}");
        if !over {
            let next = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(next).await.unwrap();
            read_until(&mut stream, "HTTP/1.1 200").await;
        }
    }
}

/// Agent of a pod that refuses a request once the first word of its body is there.
struct Full;

impl Agents for Full {
    fn ask(&self, _agent: Agent, _request: Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>> {
        let (near, mut far) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            read_until(&mut far, "BEGIN").await;
            let told = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 4\r\n\r\nfull";
            far.write_all(told).await.unwrap();
            std::future::pending::<()>().await;
        });
        let switched = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let (head, ()) = switched.body(()).unwrap().into_parts();
        Box::pin(async move { Ok(Answer::Switched(head, Box::new(near))) })
    }
}

#[tokio::test]
async fn an_early_answer_of_a_pod_says_that_its_connection_is_over() {
    let api = Api::start_with(|mut options| {
        options.agents = Some(std::sync::Arc::new(Full));
        options
    })
    .await;
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}, "spec": {}}))
        .await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, &pod("a")).await;
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{pods}/a/binding"), &binding).await;
    let status = json!({"status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}});
    api.patch(&format!("{pods}/a/status"), "merge-patch+json", &status)
        .await;
    let served = serve_api(api, |transport| transport).await;
    for (framing, sent, over) in [
        ("Content-Length: 5", "", false),
        ("Content-Length: 9000000", "more", true),
        ("Transfer-Encoding: chunked", "", true),
    ] {
        let mut stream = dial(&served, Some("root"), "http/1.1").await.unwrap();
        let begun = if over && sent.is_empty() {
            "5\r\nBEGIN\r\n"
        } else {
            "BEGIN"
        };
        let request =
            format!("POST {pods}/a:8080/proxy/x HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n{begun}{sent}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let told = read_until(&mut stream, "full").await;
        assert!(told.starts_with("HTTP/1.1 413"), "{told}");
        assert_eq!(
            told.to_ascii_lowercase().contains("connection: close"),
            over,
            "{framing}: {told}"
        );
        if !over {
            let next = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(next).await.unwrap();
            read_until(&mut stream, "HTTP/1.1 200").await;
        }
    }
}

#[tokio::test]
async fn a_stranger_may_send_as_many_headers_as_groups_to_be_in() {
    let served = serve(|transport| transport).await;
    let mut stream = dial(&served, None, "http/1.1").await.unwrap();
    let groups = "X-Group: a\r\n".repeat(500);
    let request = format!("GET /version HTTP/1.1\r\nHost: localhost\r\n{groups}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "HTTP/1.1 200").await;
}

#[tokio::test]
async fn the_rest_of_a_certificates_life_is_measured_at_each_request() {
    let served = serve(|transport| transport).await;
    let (mut sender, _) = connect(&served).await;
    assert_eq!(answers(&mut sender, LISTS).await, StatusCode::OK);
    let page = served.api.get("/metrics").await.text();
    let line = "apiserver_client_certificate_expiration_seconds_count 1\n";
    assert!(page.contains(line), "{page}");
}
