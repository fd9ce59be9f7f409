//! A client, and servers with various behavior.

use super::*;

#[test]
fn messages_have_the_shape_of_the_protocol() {
    assert_eq!(&request("")[..], [0, 0, 0, 0, 0]);
    assert_eq!(&request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
    let long = request(&"x".repeat(200));
    assert_eq!(&long[..9], [0, 0, 0, 0, 203, 0x0a, 0xc8, 1, b'x']);
    assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
    assert_eq!(status(&[0, 0, 0, 0, 0]), Some(0));
    for bad in [
        &[][..],
        &[0, 0, 0, 0, 9, 8, 1],
        &[1, 0, 0, 0, 2, 8, 1],
        &[0, 0, 0, 0, 2, 8, 0xff],
    ] {
        assert_eq!(status(bad), None, "{bad:?}");
    }
}

type Answer =
    Result<http::Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>, hyper::Error>;

/// Server that knows one service, with the status `status`.
async fn answer(request: http::Request<hyper::body::Incoming>, status: u8) -> Answer {
    assert_eq!(request.uri().path(), PATH);
    let asked = request.into_body().collect().await?.to_bytes();
    let known = asked == super::request("web");
    let mut trailers = HeaderMap::new();
    let (code, body) = match (known, status) {
        (false, _) => ("5", Vec::new()),
        (true, 9) => ("12", Vec::new()),
        (true, status) => ("0", vec![0, 0, 0, 0, 2, 8, status]),
    };
    trailers.insert("grpc-status", http::HeaderValue::from_static(code));
    trailers.insert("grpc-message", http::HeaderValue::from_static("unknown%20service"));
    let body = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let kind = if status == 7 { "text/html" } else { "application/grpc" };
    let code = if status == 8 { 404 } else { 200 };
    let answer = http::Response::builder().status(code).header("content-type", kind);
    Ok(answer.body(body.boxed()).expect("an answer"))
}

/// Behavior of the server on one connection.
#[derive(Clone, Copy)]
enum Turn {
    /// Closed at once.
    Close,
    /// The server sends nothing.
    Silence,
    /// The server sends SETTINGS and answers nothing.
    Greeting,
    /// The server answers with this status.
    Answer(u8),
}

/// Checks a server that handles its connections in turn.
async fn asked(turns: &[Turn], service: &str, limit: u64) -> (String, Result<(), String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let (mut tasks, turns) = (tokio::task::JoinSet::new(), turns.to_vec());
    tasks.spawn(async move {
        let mut kept = Vec::new();
        for turn in turns {
            let (stream, _) = listener.accept().await.expect("a connection");
            let status = match turn {
                Turn::Close => continue,
                Turn::Silence => {
                    kept.push(stream);
                    continue;
                }
                Turn::Greeting => None,
                Turn::Answer(status) => Some(status),
            };
            let service = hyper::service::service_fn(move |request| async move {
                match status {
                    Some(status) => answer(request, status).await,
                    None => std::future::pending().await,
                }
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Ends with the client.
            drop(serving.serve_connection(TokioIo::new(stream), service).await);
        }
        drop(listener);
        std::future::pending::<()>().await;
    });
    let answer = check(&address, service, Duration::from_secs(limit)).await;
    (address, answer)
}

#[tokio::test]
async fn servers_are_asked_and_believed() {
    let said = async |status, service| asked(&[Turn::Answer(status)], service, 60).await.1;
    assert_eq!(said(1, "web").await, Ok(()));
    for (status, service, wanted) in [
        (2, "web", "service unhealthy (responded with \"NOT_SERVING\")"),
        (
            1,
            "other",
            "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
        ),
        (
            7,
            "web",
            "error: health rpc probe failed: rpc error: code = Unknown desc = transport: received unexpected content-type \
             \"text/html\"",
        ),
        (
            8,
            "web",
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unexpected HTTP status \
             code received from server: 404 (Not Found)",
        ),
        (
            9,
            "web",
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service",
        ),
    ] {
        assert_eq!(said(status, service).await, Err(wanted.to_owned()));
    }
}

#[tokio::test]
async fn a_server_has_until_the_time_is_over() {
    let again = asked(&[Turn::Close, Turn::Answer(1)], "web", 20).await;
    assert_eq!(again.1, Ok(()), "it is tried again");
    for turns in [&[Turn::Silence][..], &[]] {
        let (address, answer) = asked(turns, "web", 1).await;
        let wanted = format!("timeout: failed to connect service \"{address}\" within 1s: context deadline exceeded");
        assert_eq!(answer, Err(wanted));
    }
    let late = asked(&[Turn::Greeting], "web", 4).await.1;
    assert_eq!(late, Err("timeout: health rpc did not complete within 4s".to_owned()));
}

#[test]
fn times_are_shown_as_go_shows_them() {
    let all = [1, 60, 95, 3600].map(|seconds| told(Duration::from_secs(seconds)));
    assert_eq!(all, ["1s", "1m0s", "1m35s", "1h0m0s"]);
}
