//! Unread rest of a request's body, treated like Go's server does (`net/http/server.go`,
//! `writeHeader`).
//!
//! An HTTP/1.1 connection can carry its next request only after the body of the last one was
//! consumed. A short rest is read before the answer is sent; where there is more, the answer closes
//! the connection, so that no client sends another request into it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// Bytes of a rest that is read.
const SHORT: usize = 256 << 10;
/// The time for them: the client is waiting for its answer.
const SOON: Duration = Duration::from_secs(1);

/// Follows a request's body to its end.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Unfinished>>);

#[derive(Default)]
enum Unfinished {
    /// The whole body was read.
    #[default]
    Nothing,
    /// The body is still held: a proxy goes on sending it while the answer of its backend streams.
    Held,
    /// The handler dropped the body before its end.
    Dropped(Rest),
}

struct Rest {
    body: Incoming,
    /// The client waits for `100 Continue`, which was not sent.
    held: bool,
}

/// A request's body.
struct Watched {
    /// `Some` until it is dropped.
    rest: Option<Rest>,
    back: Unread,
}

impl Unread {
    /// Wraps a request's body so that it is returned, where that matters to its connection.
    pub(super) fn watch(&self, request: Request<Incoming>) -> Request<Body> {
        if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
            return request.map(Body::new);
        }
        let (held, back) = (request.headers().contains_key(EXPECT), self.clone());
        self.set(Unfinished::Held);
        request.map(|body| {
            let rest = Some(Rest { body, held });
            Body::new(Watched { rest, back })
        })
    }

    fn set(&self, state: Unfinished) -> Unfinished {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), state)
    }

    /// Reads a short rest; otherwise says in the answer that the connection ends with it. A short
    /// rest that is still held belongs to the proxy's request, which breaks without it.
    pub(super) async fn settle(&self, response: &mut Response) {
        let read = match self.set(Unfinished::Nothing) {
            Unfinished::Nothing => return,
            Unfinished::Held => false,
            Unfinished::Dropped(Rest { body, held }) => {
                !held && tokio::time::timeout(SOON, drain(body)).await == Ok(true)
            }
        };
        if !read && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
    }
}

/// Reads a body to its end; false when it is longer than [`SHORT`] or broken.
async fn drain(mut body: Incoming) -> bool {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > SHORT {
            return false;
        }
    }
    true
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        // Polling the body makes the library send `100 Continue`.
        rest.held = false;
        let polled = Pin::new(&mut rest.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || rest.body.is_end_stream() {
            self.back.set(Unfinished::Nothing);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.as_ref().map(|rest| rest.body.size_hint()).unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let unread = self.rest.take().filter(|rest| !rest.body.is_end_stream());
        self.back.set(unread.map_or(Unfinished::Nothing, Unfinished::Dropped));
    }
}
