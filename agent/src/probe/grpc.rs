//! The gRPC health check, `grpc.health.v1.Health/Check`. Its two messages have one field each, which needs no library.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use http::HeaderMap;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::io::InspectReader;

use super::{OUTPUT_BYTES, PROBE_AGENT, told};

const PATH: &str = "/grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus`, by number.
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
/// Status codes, by number, with Go's names.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    DEADLINE_EXCEEDED,
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    UNIMPLEMENTED,
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const UNIMPLEMENTED: &str = "Unimplemented";
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// First and longest time between two attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(2));
/// Offset of the type in an HTTP/2 frame header, and the type of a server's first frame.
const KIND: usize = 3;
const SETTINGS: u8 = 4;

/// Connection whose server has sent its first HTTP/2 frame.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    connection: BoxFuture<'static, ()>,
}

/// Status code of a failed call, by name, and its message.
type Failure = (String, String);

/// Checks once; the error is the message of the probe's failure.
pub(super) async fn check(address: &str, service: &str, limit: Duration) -> Result<(), String> {
    let (deadline, within) = (Instant::now() + limit, told(limit));
    let Ok(open) = timeout_at(deadline, connect(address)).await else {
        let why = "context deadline exceeded";
        return Err(format!(
            "timeout: failed to connect service {address:?} within {within}: {why}"
        ));
    };
    let late = format!("timeout: health rpc did not complete within {within}");
    let Ok(answer) = timeout_at(deadline, ask(open, address, service)).await else {
        return Err(late);
    };
    match answer {
        Ok(1) => Ok(()),
        Ok(number) => {
            let name = STATUSES
                .get(number)
                .map_or_else(|| number.to_string(), |name| (*name).to_owned());
            Err(format!("service unhealthy (responded with {name:?})"))
        }
        Err((code, why)) => Err(match code.as_str() {
            UNIMPLEMENTED => {
                let what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)";
                format!("error: {what}: {why}")
            }
            DEADLINE_EXCEEDED => late,
            code => format!("error: health rpc probe failed: rpc error: code = {code} desc = {why}"),
        }),
    }
}

/// Connects, and retries until it is cancelled.
async fn connect(address: &str) -> Open {
    let mut pause = PAUSES.0;
    loop {
        if let Some(open) = open(address).await {
            return open;
        }
        sleep(pause).await;
        pause = (pause * 8 / 5).min(PAUSES.1);
    }
}

/// Opens a connection and waits for the server's SETTINGS frame.
async fn open(address: &str) -> Option<Open> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (told, greeted) = oneshot::channel();
    let stream = InspectReader::new(stream, listen(told));
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
    let connection = connection.map(drop).boxed();
    match select(greeted, connection).await {
        Either::Left((Ok(()), connection)) => Some(Open { sender, connection }),
        Either::Left((Err(_), _)) | Either::Right(_) => None,
    }
}

/// Reads what a server sends until its SETTINGS frame; other data drops the sender.
fn listen(told: oneshot::Sender<()>) -> impl FnMut(&[u8]) + Send + Unpin {
    let (mut told, mut heard) = (Some(told), 0);
    move |bytes: &[u8]| {
        if heard <= KIND
            && let Some(kind) = bytes.get(KIND - heard)
            && let Some(told) = told.take()
            && *kind == SETTINGS
        {
            told.send(()).ok();
        }
        heard = heard.saturating_add(bytes.len());
    }
}

/// Calls the method; returns the number of the status.
async fn ask(open: Open, address: &str, service: &str) -> Result<usize, Failure> {
    let Open { mut sender, connection } = open;
    let request = http::Request::post(format!("http://{address}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", PROBE_AGENT)
        .body(Full::new(request(service)))
        .map_err(|error| internal(&error))?;
    let talk = async move {
        let (head, body) = sender
            .send_request(request)
            .await
            .map_err(|error| lost(&error))?
            .into_parts();
        let body = Limited::new(body, OUTPUT_BYTES).collect().await;
        let body = body.map_err(|error| internal(&error))?;
        let trailers = body.trailers().cloned();
        judge(&head, trailers.as_ref(), &body.to_bytes())
    };
    // If the connection ends before the answer, the request fails as well.
    match select(std::pin::pin!(talk), connection).await {
        Either::Left((answer, _)) => answer,
        Either::Right(((), talk)) => talk.await,
    }
}

fn internal(why: &dyn std::fmt::Display) -> Failure {
    ("Internal".to_owned(), why.to_string())
}

fn lost(error: &hyper::Error) -> Failure {
    if error.is_canceled() || error.is_closed() || error.is_incomplete_message() {
        return ("Unavailable".to_owned(), "error reading from server: EOF".to_owned());
    }
    internal(&image::chain(error))
}

/// Message with its gRPC prefix: not compressed, and its length. Field 1 is the service's name.
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

fn judge(head: &http::response::Parts, trailers: Option<&HeaderMap>, body: &[u8]) -> Result<usize, Failure> {
    let kind = head.headers.get("content-type").map(http::HeaderValue::to_str);
    let kind = kind.map(Result::unwrap_or_default);
    if !head.status.is_success() || !kind.is_some_and(is_grpc) {
        return Err(foreign(head.status, kind));
    }
    let get = |name: &str| {
        let in_trailers = trailers.and_then(|trailers| trailers.get(name));
        in_trailers.or_else(|| head.headers.get(name))?.to_str().ok()
    };
    let message = percent_encoding::percent_decode_str(get("grpc-message").unwrap_or_default()).decode_utf8_lossy();
    match get("grpc-status") {
        Some("0") => status(body).ok_or_else(|| internal(&"grpc: failed to unmarshal the received message")),
        Some(code) => {
            let name = code.parse().ok().and_then(|code: usize| CODES.get(code));
            let name = name.map_or_else(|| format!("Code({code})"), |name| (*name).to_owned());
            Err((name, message.into_owned()))
        }
        None => Err(internal(&"server closed the stream without sending trailers")),
    }
}

fn is_grpc(kind: &str) -> bool {
    let rest = kind.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// Failure for an answer that is not gRPC.
fn foreign(status: http::StatusCode, kind: Option<&str>) -> Failure {
    let code = match status.as_u16() {
        400 => "Internal",
        401 => "Unauthenticated",
        403 => "PermissionDenied",
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => "Unavailable",
        _ => "Unknown",
    };
    let number = (!status.is_success()).then(|| {
        let (number, reason) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
        format!("unexpected HTTP status code received from server: {number} ({reason})")
    });
    let kind = match kind {
        Some(kind) if is_grpc(kind) => None,
        Some(kind) => Some(format!("transport: received unexpected content-type {kind:?}")),
        None => Some("malformed header: missing HTTP content-type".to_owned()),
    };
    let why: Vec<String> = number.into_iter().chain(kind).collect();
    (code.to_owned(), why.join("; "))
}

/// Status in the first message: field 1, which is absent if it is 0.
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
mod tests;
