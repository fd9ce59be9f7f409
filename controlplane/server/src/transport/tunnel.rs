//! Connections that switch protocols: after the answer's head all bytes go through, both ways, unchanged.

pub(crate) mod frames;
pub(crate) mod messages;

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::node::agents::Stream;
use crate::request::failure::Failure;
use crate::transport::respond::Response;
use frames::Frames;

/// Buffer size of one direction in bytes.
const BUFFER: usize = 32 << 10;
/// Time for which one direction stays open after the other has ended.
const LINGER: Duration = Duration::from_secs(10);

/// Future of a connection after its last response, which carries it.
#[derive(Clone)]
pub(crate) struct Tunnel(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl Tunnel {
    /// Empty tunnel.
    pub(crate) fn nothing() -> Self {
        Self(Arc::default())
    }

    fn new(work: BoxFuture<'static, ()>) -> Self {
        Self(Arc::new(Mutex::new(Some(work))))
    }

    pub(crate) fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes over the connection that an answer carries.
    pub(crate) fn fill(&self, response: &mut Response) {
        if let Some(other) = response.extensions_mut().remove::<Self>() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = other.take();
        }
    }
}

/// Keeps something for as long as the connection that an answer carries.
pub(crate) fn keep(response: &mut Response, kept: impl Send + 'static) {
    let work = response.extensions().get::<Tunnel>().and_then(Tunnel::take);
    if let Some(work) = work {
        let work = async move {
            work.await;
            drop(kept);
        };
        response.extensions_mut().insert(Tunnel::new(work.boxed()));
    }
}

/// True if a client asks to switch protocols.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let connection = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let named = connection
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    named && headers.get(UPGRADE).is_some_and(|value| !value.is_empty())
}

/// True if the headers are of a switch to WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    is_wanted(headers)
        && headers
            .get(UPGRADE)
            .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Headers of a protocol switch; all others are hop-by-hop.
pub(crate) fn headers(all: &HeaderMap) -> HeaderMap {
    let belongs = |name: &HeaderName| {
        *name == UPGRADE || name == "x-stream-protocol-version" || name.as_str().starts_with("sec-websocket-")
    };
    let mut kept = HeaderMap::new();
    for (name, value) in all.iter().filter(|(name, _)| belongs(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    kept
}

/// Answers the client as the back end did and joins both connections. The back end's ends in any case.
pub(crate) fn open(
    client: Option<OnUpgrade>,
    answer: HeaderMap,
    mut back: Box<dyn Stream>,
) -> Result<Response, Failure> {
    let websocket = answer
        .get(UPGRADE)
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let frames = websocket.then(Frames::default);
    switch(client, answer, move |client| async move {
        join(client, &mut back, frames).await;
    })
}

/// Answers with these headers and leaves the client's connection to the work.
pub(crate) fn switch<Work: Future<Output = ()> + Send + 'static>(
    client: Option<OnUpgrade>,
    answer: HeaderMap,
    work: impl FnOnce(TokioIo<Upgraded>) -> Work + Send + 'static,
) -> Result<Response, Failure> {
    let Some(client) = client else {
        return Err(Failure::bad_request("this connection cannot be upgraded"));
    };
    let work = async move {
        match client.await {
            Ok(client) => work(TokioIo::new(client)).await,
            Err(error) => tracing::debug!(%error, "a client's connection was not upgraded"),
        }
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer;
    response.extensions_mut().insert(Tunnel::new(work.boxed()));
    Ok(response)
}

/// Copies in both directions. When one side ends, the other is shut down, and may still send the
/// rest.
async fn join(
    client: impl AsyncRead + AsyncWrite,
    back: &mut (impl AsyncRead + AsyncWrite + Unpin),
    frames: Option<Frames>,
) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_back, to_back) = tokio::io::split(back);
    let mut there = pin!(copy(from_client, to_back, None));
    let mut here = pin!(copy(from_back, to_client, frames));
    tokio::select! {
        () = &mut there => drop(tokio::time::timeout(LINGER, here).await),
        () = &mut here => drop(tokio::time::timeout(LINGER, there).await),
    }
}

/// Copies to the end, or to the first failure: then nothing more can be done for this direction.
///
/// Writes each of the `frames` separately, so that it begins a TLS record: clients such as Python's
/// poll the socket before every frame, and would miss one that arrived in the record of the frame
/// before it.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut frames: Option<Frames>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => length,
        };
        let mut rest = buffer.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let length = frames.as_mut().map_or(rest.len(), |frames| frames.advance(rest));
            let (frame, others) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            if to.write_all(frame).await.is_err() {
                return;
            }
            rest = others;
        }
        if to.flush().await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}
