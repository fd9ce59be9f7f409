//! WATCH: the present as synthetic events where asked for, then every change, until the client has enough.

mod frames;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::unfold;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use store::{Event, ListAt, Watch, WatchError};
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep_until};

use self::frames::{Frames, Kind};
use crate::extensions::definitions::Span;
use crate::read::list::revision;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::Live;
use crate::request::query::Query;
use crate::request::selection::Selection;
use crate::server::limits::{Room, Taken};
use crate::storage;
use crate::transport::negotiation::{Encoding, Representation, negotiate_watch};
use crate::transport::respond::Response;
use crate::transport::tunnel::{self, messages};

/// A watch without `timeoutSeconds` lasts this long and up to as long again.
const MIN_TIMEOUT: Duration = Duration::from_mins(30);
/// No watch lasts longer, however long the client wants it: a clock does not reach as far as a number of 64 bits.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);
/// Interval between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// Bytes of synthetic events that are sent in one piece.
const BATCH: usize = 64 * 1024;

/// Start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The present as ADDED events; whether a bookmark marks their end.
    Present { marked: bool },
    /// Changes after a revision.
    After(u64),
    /// Changes from now on.
    Now,
}

/// Answers a stream of frames.
pub(crate) async fn watch(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate_watch(&context.headers)?;
    let mut selection = Selection::read(&context.registration, &context.query)?;
    if context.info.named {
        selection = selection.only(&context.info.name);
    }
    validate(&context.query)?;
    let bookmarks = context.query.flag("allowWatchBookmarks");
    let start = start(&context.query, bookmarks)?;
    let timeout = timeout(&context.query)?;
    let frames = Frames::new(context, representation, selection)?;
    let speaks = has_messages(context, representation);
    let head = speaks.then(|| messages::headers(&context.headers)).transpose()?;
    // On the heap, as the stream moves it about for every frame.
    let mut watcher = Box::new(Watcher::open(context, frames, start, bookmarks, timeout).await?);
    watcher.singly = head.is_some();
    let stream = unfold(watcher, |mut watcher| async move {
        let frame = watcher.next().await?;
        Some((frame, watcher))
    });
    if let Some(head) = head {
        let client = context.wire.upgrade.take();
        let stream = stream.take_until(context.server.limits.ending().cancelled_owned());
        return tunnel::switch(client, head, move |client| messages::send(stream, client));
    }
    let mut response = Response::new(Body::from_stream(stream.map(Ok::<Bytes, Infallible>)));
    let content_type = HeaderValue::from_static(representation.encoding.frames_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

/// True if the client wants every event as a message of WebSocket.
fn has_messages(context: &Context, representation: Representation) -> bool {
    let wire = &context.wire;
    wire.method == Method::GET
        && wire.upgrade.is_some()
        && tunnel::is_websocket(&context.headers)
        && representation.encoding != Encoding::Protobuf
}

fn validate(query: &Query) -> Result<(), Failure> {
    let mut found = Vec::new();
    let wanted = query.text("resourceVersionMatch");
    let initial = query.get("sendInitialEvents").is_some();
    let mut forbid = |detail: &str| found.push(api::Invalid::forbidden("resourceVersionMatch", detail));
    if initial && wanted != Some("NotOlderThan") {
        forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if let Some(wanted) = wanted {
        if !initial {
            forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if query.text("continue").is_some() {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if wanted != "NotOlderThan" {
            let only = ["NotOlderThan"];
            found.push(api::Invalid::not_supported("resourceVersionMatch", wanted, &only));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid("meta.k8s.io", "ListOptions", "", &found))
}

fn start(query: &Query, bookmarks: bool) -> Result<Start, Failure> {
    let revision = revision(query)?.unwrap_or(0);
    Ok(match (query.optional_flag("sendInitialEvents"), revision) {
        (Some(true), _) => Start::Present { marked: bookmarks },
        (Some(false), 0) => Start::Now,
        (None, 0) => Start::Present { marked: false },
        (Some(false) | None, revision) => Start::After(revision),
    })
}

fn timeout(query: &Query) -> Result<Duration, Failure> {
    let seconds = query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Ok(seconds.map_or_else(
        || MIN_TIMEOUT.mul_f64(1.0 + rand::random::<f64>()),
        |seconds| Duration::from_secs(seconds).min(MAX_TIMEOUT),
    ))
}

/// Initial state of a watch.
#[derive(Default)]
struct Begun {
    initial: Vec<Live>,
    /// Revision of the list of the present, where there is one.
    listed_at: u64,
    mark: Option<u64>,
    changes: Option<Watch>,
    ahead: u64,
    room: Option<Room>,
    /// Permits for the initial list, while it is in memory.
    listed: Option<Taken>,
}

impl Begun {
    async fn new(context: &Context, frames: &Frames, start: Start) -> Result<Self, Failure> {
        let store = context.store();
        let prefix = storage::prefix(&context.registration, &context.info.namespace);
        let mut begun = Self {
            // In-process clients always read their events.
            room: context
                .wire
                .source
                .map(|_| context.server.limits.unread(&context.user.name)),
            ..Self::default()
        };
        let from = match start {
            Start::Present { marked } => {
                context.fresh(revision(&context.query)?.unwrap_or(0)).await?;
                let list = store
                    .list(&prefix, ListAt::Latest, None, None)
                    .await
                    .map_err(Failure::internal)?;
                let lives = context.lives(list.entries).await?.into_iter();
                begun.initial = lives.filter(|live| frames.chooses(live)).collect();
                if let Some(room) = &begun.room {
                    let size = begun.initial.capacity() * size_of::<Live>();
                    begun.listed = Some(room.take_now(size).ok_or(Failure::OVERLOADED)?);
                }
                begun.mark = marked.then_some(list.revision);
                begun.listed_at = list.revision;
                list.revision
            }
            // A future revision is not waited for: the watch sends what follows it.
            Start::After(revision) => revision,
            Start::Now => store.revision(),
        };
        let current = store.revision();
        begun.ahead = if from > current { from } else { 0 };
        let changes = store
            .watch_field(&prefix, frames.trigger(), from)
            .map_err(|error| ending(&error, current))?;
        begun.changes = Some(changes);
        Ok(begun)
    }
}

/// Watch in progress.
struct Watcher {
    frames: Frames,
    initial: std::vec::IntoIter<Live>,
    /// True if each event is a frame of its own.
    singly: bool,
    /// Revision whose bookmark marks the end of the synthetic events.
    mark: Option<u64>,
    changes: Option<Watch>,
    room: Option<Room>,
    listed: Option<Taken>,
    /// The revision to come after which changes are wanted: no bookmark may promise it before.
    ahead: u64,
    /// Definition of a custom kind; the watch ends with it.
    span: Option<Span>,
    /// The last frame, when nothing can follow it.
    last: Option<Bytes>,
    bookmarks: Option<Interval>,
    /// Made once: to make one for every change would cost more than the change.
    deadline: Pin<Box<Sleep>>,
}

impl Watcher {
    async fn open(
        context: &Context,
        frames: Frames,
        start: Start,
        bookmarks: bool,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let now = Instant::now();
        let row = &context.registration;
        let span = row
            .is_defined()
            .then(|| context.server.definitions.span(context.store(), row));
        let mut span = span.transpose().map_err(|error| ending(&error, 0))?;
        let begun = Begun::new(context, &frames, start).await;
        // An authorized watch gets the answer's head; later errors are sent as events.
        let (mut begun, last) = match begun {
            Ok(begun) => (begun, None),
            Err(failure) => (Begun::default(), Some(frames.error(&failure))),
        };
        if is_over(&mut span, begun.listed_at).await {
            begun = Begun::default();
        }
        let bookmarks = bookmarks.then(|| {
            let mut interval = interval_at(now + BOOKMARK_EVERY, BOOKMARK_EVERY);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Ok(Self {
            frames,
            initial: begun.initial.into_iter(),
            singly: false,
            mark: begun.mark,
            changes: begun.changes,
            room: begun.room,
            listed: begun.listed,
            ahead: begun.ahead,
            span,
            last,
            bookmarks,
            deadline: Box::pin(sleep_until(now + timeout)),
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if !self.initial.as_slice().is_empty() {
            return self.batch().await;
        }
        self.listed = None;
        if let Some(revision) = self.mark.take() {
            return Some(self.frames.bookmark(revision, true));
        }
        loop {
            let Some(changes) = &mut self.changes else {
                return self.last.take();
            };
            let end = self.span.as_ref().and_then(Span::known);
            tokio::select! {
                biased;
                change = next(changes, end) => match change {
                    Ok(Some(event)) => {
                        // Later changes are not of this version of the kind.
                        if is_over(&mut self.span, event.revision).await {
                            self.changes = None;
                            continue;
                        }
                        let taken = room(self.room.as_ref(), event.entry.bytes.len(), self.deadline.as_mut()).await?;
                        let frame = if self.frames.converts() {
                            self.frames.converted_event(&event).await
                        } else {
                            Ok(self.frames.event(&event))
                        };
                        match frame {
                            Ok(None) => {}
                            Ok(Some(frame)) => return Some(held(taken, frame)),
                            Err(failure) => {
                                self.changes = None;
                                return Some(self.frames.error(&failure));
                            }
                        }
                    }
                    // Without a definition it ends like upstream's watches when their storage is
                    // torn down (`pkg/apiserver/customresource_handler.go`).
                    Ok(None) | Err(WatchError::Closed) => self.changes = None,
                    Err(error) => {
                        let frame = self.frames.error(&ending(&error, 0));
                        self.changes = None;
                        return Some(frame);
                    }
                },
                // Changes before the end are still to come.
                _ = ended(&mut self.span), if end.is_none() => {}
                () = self.deadline.as_mut() => {
                    let revision = changes.progress();
                    self.changes = None;
                    let told = self.bookmarks.is_some() && revision > self.ahead;
                    return told.then(|| self.frames.bookmark(revision, false));
                }
                () = tick(&mut self.bookmarks) => {
                    let revision = changes.progress();
                    if revision > self.ahead {
                        return Some(self.frames.bookmark(revision, false));
                    }
                }
            }
        }
    }

    /// Synthetic events, several in one piece unless each is wanted singly.
    async fn batch(&mut self) -> Option<Bytes> {
        let mut size = 0;
        for live in self.initial.as_slice() {
            size += live.entry().bytes.len();
            if size >= BATCH {
                break;
            }
        }
        let taken = room(self.room.as_ref(), size, self.deadline.as_mut()).await?;
        let first = self.initial.next()?;
        let mut batch = self.frames.of(Kind::Added, &first).to_vec();
        while !self.singly && batch.len() < BATCH {
            let Some(entry) = self.initial.next() else { break };
            batch.extend_from_slice(&self.frames.of(Kind::Added, &entry));
        }
        Some(held(taken, batch.into()))
    }
}

/// Waits for buffer space for a frame, so that a slow client falls behind. `None` when the watch
/// has timed out.
async fn room(room: Option<&Room>, bytes: usize, deadline: Pin<&mut Sleep>) -> Option<Option<Taken>> {
    let Some(room) = room else { return Some(None) };
    tokio::select! {
        biased;
        taken = room.take(bytes) => taken.map(Some),
        () = deadline => None,
    }
}

fn held(taken: Option<Taken>, frame: Bytes) -> Bytes {
    match taken {
        Some(taken) => taken.with(frame),
        None => frame,
    }
}

async fn is_over(span: &mut Option<Span>, revision: u64) -> bool {
    match span {
        Some(span) => span.is_over(revision).await,
        None => false,
    }
}

/// The next change; `None` after the last one up to the end.
async fn next(changes: &mut Watch, end: Option<u64>) -> Result<Option<Arc<Event>>, WatchError> {
    match end {
        Some(end) => changes.next_until(end).await,
        None => changes.next().await.map(Some),
    }
}

async fn ended(span: &mut Option<Span>) -> u64 {
    match span {
        Some(span) => span.end().await,
        None => std::future::pending().await,
    }
}

async fn tick(bookmarks: &mut Option<Interval>) {
    match bookmarks {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Error that a client gets when a watch cannot continue.
fn ending(error: &WatchError, current: u64) -> Failure {
    match error {
        WatchError::Expired { after } if current > 0 => {
            Failure::expired(format!("too old resource version: {after} ({current})"))
        }
        WatchError::Expired { .. } => Failure::expired("The resourceVersion for the provided watch is too old."),
        WatchError::Closed => Failure::Unavailable {
            message: "the server is shutting down".into(),
        },
        WatchError::Failed(source) => {
            tracing::error!(error = %source, "watch ended");
            Failure::internal(Arc::clone(source))
        }
    }
}
