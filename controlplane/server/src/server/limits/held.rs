//! Answers that last.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Pass;

/// A body that counts as a request in flight. When the server stops, one without an end of its own ends between two
/// frames: its client sees a complete answer and asks elsewhere.
#[derive(Debug)]
pub(crate) struct Held {
    body: Body,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    _pass: Pass,
}

impl Held {
    pub(super) fn new(body: Body, ending: CancellationToken, pass: Pass) -> Self {
        Self {
            body,
            ending: Box::pin(ending.cancelled_owned()),
            _pass: pass,
        }
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending()
            && self.body.size_hint().exact().is_none()
            && self.ending.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(None);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
