//! The turn of a request: its body arrives, then it takes a seat of its priority level.
//!
//! Upstream takes the seat first: a body that is sent byte by byte would then occupy the level at no
//! cost to its sender. Arriving bodies are bounded by [`ResourceLimits`](crate::server::limits::ResourceLimits) instead.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use tokio::time::{Instant, timeout_at};

use crate::authn::identity::{Source, User};
use crate::ops::audit::Layer;
use crate::ops::audit::recording::Outcome;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::query::Query;
use crate::server::flow_control::Admitted;
use crate::server::limits::Share;
use crate::server::shared::Shared;
use crate::transport::body;

/// `requestTimeoutUpperBound` of upstream's `pkg/endpoints/handlers/rest.go`.
const LONGEST_WRITE: Duration = Duration::from_secs(34);
/// Timeout of a request that is not long-running (`RequestTimeout` of `pkg/server/config.go`).
pub(super) const LONGEST: Duration = Duration::from_mins(1);

/// Bounds of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// The client is outside the process.
    pub(super) outside: bool,
    /// The request is long-running.
    pub(super) lasts: bool,
    limit: Option<Duration>,
    end: Instant,
}

impl Turn {
    /// Reads the bounds of a request that begins now.
    ///
    /// # Errors
    /// 400 for a time that is none.
    pub(super) fn new(parts: &Parts, info: &RequestInfo, query: &Query) -> Result<Self, Failure> {
        let lasts = info.lasts();
        let limit = if lasts { None } else { query.timeout()? };
        Ok(Self {
            outside: parts.extensions.get::<Source>().is_some(),
            lasts,
            limit,
            end: Instant::now() + limit.map_or(LONGEST, |limit| limit.min(LONGEST)),
        })
    }

    /// Deadline of a handler that begins now.
    pub(super) fn deadline(&self) -> Instant {
        self.end.min(Instant::now() + LONGEST_WRITE)
    }

    /// Sets the flow of the request. Long-running requests have none, except for the start of a watch.
    pub(super) fn sort(&self, shared: &Shared, user: &User, path: &str, outcome: &mut Outcome) {
        let info = &outcome.info;
        if self.outside && (!self.lasts || info.verb == "watch") {
            outcome.flow = Some(shared.flow.classify(user, info, path));
        }
    }

    /// Waits for a seat in the level of the request's flow.
    ///
    /// # Errors
    /// 429
    pub(super) async fn seat(&self, shared: &Shared, outcome: &mut Outcome) -> Result<Option<Admitted>, Failure> {
        let Some(flow) = &outcome.flow else { return Ok(None) };
        let reads = outcome.info.is_read();
        let now = (shared.options.clock)().as_second();
        let admitted = shared.flow.enter(flow, (reads, self.limit), now).await?;
        outcome.latencies.push((Layer::Queue, admitted.waited));
        Ok(Some(admitted))
    }

    /// Waits for the whole body; the share keeps its memory counted.
    ///
    /// # Errors
    /// 413, 400 when it does not arrive, 429 when too much is on its way, 504
    pub(super) async fn body(
        &self,
        shared: &Shared,
        user: &User,
        body: Body,
    ) -> Result<(Bytes, Option<Share>), Failure> {
        if !self.outside {
            return Ok((body::read(body).await?, None));
        }
        let read = timeout_at(self.end, shared.limits.read(&user.name, body)).await;
        let (bytes, room) = read.unwrap_or(Err(Failure::Late))?;
        Ok((bytes, Some(room)))
    }

    /// Like [`Self::body`], for one that is handed on: the rest of an oversized body is still to come.
    ///
    /// # Errors
    /// As [`Self::body`], but 413
    pub(super) async fn beginning(
        &self,
        shared: &Shared,
        user: &User,
        body: Body,
    ) -> Result<(body::Begun, Option<Share>), Failure> {
        let read = timeout_at(self.end, shared.limits.begin(&user.name, body)).await;
        let (begun, room) = read.unwrap_or(Err(Failure::Late))?;
        Ok((begun, Some(room)))
    }
}
