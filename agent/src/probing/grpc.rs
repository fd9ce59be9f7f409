//! The gRPC health check, `grpc.health.v1.Health/Check`. Its two messages have one field each, which needs no library.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{OUTPUT_BYTES, PROBE_AGENT};

const PATH: &str = "/grpc.health.v1.Health/Check";
const UNIMPLEMENTED: &str = "12";
const DEADLINE_EXCEEDED: &str = "4";
/// `HealthCheckResponse.ServingStatus`, by number.
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// Asks once; an error is the message of the probe's failure.
pub(super) async fn check(address: &str, service: &str, limit: Duration) -> Result<(), String> {
    let within = format!("{}s", limit.as_secs());
    let late = format!("timeout: failed to connect service {address:?} within {within}: context deadline exceeded");
    let deadline = tokio::time::Instant::now() + limit;
    let Ok(Ok(stream)) = tokio::time::timeout_at(deadline, TcpStream::connect(address)).await else {
        return Err(late);
    };
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let Ok(Ok((mut sender, connection))) = tokio::time::timeout_at(deadline, connected).await else {
        return Err(late);
    };
    let request = http::Request::post(format!("http://{address}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", PROBE_AGENT)
        .body(Full::new(request(service)))
        .map_err(|error| failed(&error.to_string()))?;
    let talk = async move {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| failed(&error.to_string()))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, OUTPUT_BYTES).collect().await;
        let body = body.map_err(|error| failed(&error.to_string()))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        judge(&head, &trailers, &body.to_bytes(), &within)
    };
    let talk = std::pin::pin!(talk);
    let answered = async {
        // The connection's own end before an answer shows in the answer.
        match futures::future::select(talk, connection).await {
            futures::future::Either::Left((answer, _)) => answer,
            futures::future::Either::Right((_, talk)) => talk.await,
        }
    };
    match tokio::time::timeout_at(deadline, answered).await {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "timeout: health rpc did not complete within {}s",
            limit.as_secs()
        )),
    }
}

fn failed(why: &str) -> String {
    format!("error: health rpc probe failed: {why}")
}

/// A message behind its frame's head: not compressed, and its length. Field 1 is the service's name.
fn request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        varint(service.len(), &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&message);
    frame.into()
}

fn varint(mut value: usize, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap_or(0));
}

fn judge(head: &http::response::Parts, trailers: &HeaderMap, body: &[u8], within: &str) -> Result<(), String> {
    if !head.status.is_success() {
        let code = head.status.as_u16();
        return Err(failed(&format!(
            "unexpected HTTP status code received from server: {code}"
        )));
    }
    let get = |name: &str| trailers.get(name).or_else(|| head.headers.get(name))?.to_str().ok();
    let message = percent_encoding::percent_decode_str(get("grpc-message").unwrap_or_default()).decode_utf8_lossy();
    match get("grpc-status") {
        Some("0") => {}
        Some(UNIMPLEMENTED) => {
            let what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)";
            return Err(format!("error: {what}: {message}"));
        }
        Some(DEADLINE_EXCEEDED) => return Err(format!("timeout: health rpc did not complete within {within}")),
        Some(code) => return Err(failed(&format!("rpc error: code = {code} desc = {message}"))),
        None => return Err(failed("the answer has no status")),
    }
    match status(body) {
        Some(1) => Ok(()),
        Some(number) => {
            let name = STATUSES
                .get(number)
                .map_or_else(|| number.to_string(), |name| (*name).to_owned());
            Err(format!("service unhealthy (responded with {name:?})"))
        }
        None => Err(failed("the answer is no HealthCheckResponse")),
    }
}

/// The status in the first frame: field 1, which is absent when it is 0.
fn status(body: &[u8]) -> Option<usize> {
    let (head, message) = body.split_at_checked(5)?;
    let (compressed, length) = head.split_first()?;
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    let message = message.get(..length)?;
    match (compressed, message) {
        (0, []) => Some(0),
        (0, [0x08, status, ..]) if *status < 0x80 => Some(usize::from(*status)),
        (_, _) => None,
    }
}

#[cfg(test)]
mod tests {
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

    /// A server that knows one service, and says of it what `status` is.
    async fn answer(
        request: http::Request<hyper::body::Incoming>,
        status: u8,
    ) -> Result<http::Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>, hyper::Error>
    {
        assert_eq!(request.uri().path(), PATH);
        let asked = request.into_body().collect().await?.to_bytes();
        let known = asked == super::request("web");
        let mut trailers = HeaderMap::new();
        let (code, body) = if known {
            ("0", vec![0, 0, 0, 0, 2, 8, status])
        } else {
            ("5", Vec::new())
        };
        trailers.insert("grpc-status", http::HeaderValue::from_static(code));
        trailers.insert("grpc-message", http::HeaderValue::from_static("unknown%20service"));
        let body = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(trailers))));
        Ok(http::Response::new(body.boxed()))
    }

    #[tokio::test]
    async fn servers_are_asked_and_believed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            for status in [1, 2, 1] {
                let (stream, _) = listener.accept().await.expect("a connection");
                let service = hyper::service::service_fn(move |request| answer(request, status));
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                // It ends when the client does.
                drop(serving.serve_connection(TokioIo::new(stream), service).await);
            }
            drop(listener.accept().await);
            std::future::pending::<()>().await;
        });
        let limit = Duration::from_secs(5);
        assert_eq!(check(&address, "web", limit).await, Ok(()));
        assert_eq!(
            check(&address, "web", limit).await,
            Err("service unhealthy (responded with \"NOT_SERVING\")".to_owned())
        );
        let error = check(&address, "other", limit).await.expect_err("an unknown service");
        assert_eq!(
            error,
            "error: health rpc probe failed: rpc error: code = 5 desc = unknown service"
        );
        let error = check(&address, "web", Duration::from_secs(1))
            .await
            .expect_err("nobody answers");
        assert!(
            error.starts_with("timeout: ") || error.starts_with("error: "),
            "{error}"
        );
    }
}
