//! Limits of the memory that requests hold: number of long-running ones, bytes of bodies in
//! transit, and their duration.
//!
//! One user holds at most half of each, of bodies a sixteenth, so that a client with excessive
//! requests waits for itself. The number of concurrent requests is the concern of
//! [flow control](crate::server::flow_control), once their bodies have arrived. Requests from inside the process
//! never wait: they are limited by their senders.

mod held;
mod shares;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use tokio_util::sync::CancellationToken;

use crate::request::failure::Failure;
use crate::transport::body::{self, Begun};
use held::Held;
use shares::Shares;
pub(crate) use shares::{Room, Share, Taken};

/// Requests that last: watches, logs that are followed, sessions.
const LASTING: usize = 32_768;
/// The longest wait for room.
const WAIT: Duration = Duration::from_secs(15);
/// The longest time for a body to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);
/// Bodies are counted in pieces of this size, each as one at least: a request takes memory besides
/// its body …
const PIECE: usize = 64 << 10;
/// Number of pieces: 256 MiB in total.
const PIECES: usize = 4 << 10;
/// Pieces that one user may hold, 16 MiB: bodies count before they arrive, so that two users could
/// take all if each had half.
const OF_USER: usize = PIECES / 16;

/// Bytes that watches buffer for slow clients, in total; one user may have half.
const UNREAD: usize = 128 << 20;

/// Limit of concurrent reads of the past, two of them by one user: each holds up to 32 MiB of objects
/// that are not shared.
const PAST: usize = 3;
/// Maximum wait for a read of the past.
const PAST_WAIT: Duration = Duration::from_secs(10);

/// Resource limits of a server.
pub(crate) struct ResourceLimits {
    lasting: Arc<Shares>,
    bodies: Arc<Shares>,
    unread: Arc<Shares>,
    past: Arc<Shares>,
    ending: CancellationToken,
}

/// The place of a request that lasts.
#[derive(Debug)]
pub(crate) struct Pass {
    _lasting: Share,
}

impl Pass {
    /// The body of an answer, which holds the pass until its end, or until `ending`.
    pub(crate) fn hold(self, body: Body, ending: CancellationToken) -> Held {
        Held::new(body, ending, self)
    }
}

impl ResourceLimits {
    pub(crate) fn new() -> Self {
        Self {
            lasting: Shares::new(LASTING, LASTING / 2),
            bodies: Shares::new(PIECES, OF_USER),
            unread: Shares::of_bytes(UNREAD),
            past: Shares::new(PAST, PAST.div_ceil(2)),
            ending: CancellationToken::new(),
        }
    }

    /// Token that is canceled when long-running requests must end.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }

    /// Buffer space for a user's watch.
    pub(crate) fn unread(&self, user: &str) -> Room {
        self.unread.room(user)
    }

    /// Takes a place for a request that lasts.
    ///
    /// # Errors
    /// 429
    pub(crate) fn enter(&self, user: &str) -> Result<Pass, Failure> {
        let lasting = self.lasting.take_now(user).ok_or(Failure::OVERLOADED)?;
        Ok(Pass { _lasting: lasting })
    }

    /// Acquires a slot for a read of the past.
    ///
    /// # Errors
    /// 429
    pub(crate) async fn past(&self, user: &str) -> Result<Share, Failure> {
        match tokio::time::timeout(PAST_WAIT, self.past.take(user, 1)).await {
            Ok(Some(share)) => Ok(share),
            Ok(None) | Err(_) => Err(Failure::TooManyRequests {
                message: "too many reads of the past are under way".into(),
                retry_after: 1,
                causes: Vec::new(),
            }),
        }
    }

    /// Requests that last.
    pub(crate) fn in_flight(&self) -> usize {
        LASTING.saturating_sub(self.lasting.free())
    }

    /// Reads a whole body of a user within its time; its bytes are counted until the share is
    /// dropped.
    ///
    /// # Errors
    /// 413 over the limit, 400 when it does not arrive, 429 when too much is on its way already.
    pub(crate) async fn read(&self, user: &str, body: Body) -> Result<(Bytes, Share), Failure> {
        self.arrived(user, body, body::read).await
    }

    /// Like [`Self::read`], but leaves the rest of an oversized body unread.
    ///
    /// # Errors
    /// As [`Self::read`], but 413
    pub(crate) async fn begin(&self, user: &str, body: Body) -> Result<(Begun, Share), Failure> {
        self.arrived(user, body, body::begin).await
    }

    async fn arrived<T, F>(&self, user: &str, body: Body, read: impl FnOnce(Body) -> F) -> Result<(T, Share), Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let hint = body.size_hint();
        let announced = hint.upper().and_then(|bytes| usize::try_from(bytes).ok());
        let pieces = announced.unwrap_or(body::LIMIT).min(body::LIMIT).div_ceil(PIECE);
        let room = self.bodies.take(user, u32::try_from(pieces).unwrap_or(u32::MAX));
        let Ok(Some(room)) = tokio::time::timeout(WAIT, room).await else {
            return Err(Failure::OVERLOADED);
        };
        match tokio::time::timeout(ARRIVAL, read(body)).await {
            Ok(read) => Ok((read?, room)),
            Err(_) => Err(Failure::bad_request(
                "unable to read the request body: it did not arrive in time",
            )),
        }
    }
}
