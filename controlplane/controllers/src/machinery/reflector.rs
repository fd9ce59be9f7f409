//! Keeps a cache in sync with the server: lists, then watches, and lists again only if the watch
//! cannot be resumed.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, iter};

use controlplane_plan::step::Resource;
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::{Method, Request};
use kube::core::Status;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::machinery::cache::{Cache, Cached, Progress};
use crate::machinery::request::{self, JSON, Reply, escape};

const PAGE: usize = 500;
/// Timeout of a watch on the server; it is resumed where it stopped.
const WATCH_SECONDS: u32 = 300;
/// A watch without events for longer than its timeout is dead.
const SILENCE: Duration = Duration::from_secs(330);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Consecutive watches that may fail without an event, about ten seconds in all.
const FAILURES: u32 = 9;

/// Cache of any kind, as a reflector fills it. Only what reads objects is compiled for each kind.
pub(crate) trait Reflected: Progress {
    /// Begins a list.
    fn list(&self) -> Box<dyn Listing + '_>;
    /// Applies an event of a watch. Returns the error that the server sent instead.
    fn change(&self, event: &str) -> serde_json::Result<Option<Box<Status>>>;
    /// Notified when a new list is requested.
    fn refresh(&self) -> &Notify;
}

/// Pages of a list.
pub(crate) trait Listing: Send {
    /// Reads a page.
    fn add(&mut self, page: &str) -> serde_json::Result<PageMetadata>;
    /// Replaces the content of the cache. Returns the number of objects.
    fn end(self: Box<Self>, revision: u64, asked: u64) -> usize;
}

impl<K: Cached> Reflected for Cache<K> {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Pages {
            cache: self,
            objects: Vec::new(),
        })
    }

    fn change(&self, event: &str) -> serde_json::Result<Option<Box<Status>>> {
        match serde_json::from_str::<Event<K>>(event)? {
            Event::Object { mut object, deleted } => {
                object.trim();
                self.apply(object, deleted);
            }
            Event::Bookmark(mark) => self.progress(mark.revision().unwrap_or(0)),
            Event::Error(status) => return Ok(Some(status)),
        }
        Ok(None)
    }

    fn refresh(&self) -> &Notify {
        &self.refresh
    }
}

struct Pages<'a, K: Cached> {
    cache: &'a Cache<K>,
    objects: Vec<K>,
}

impl<K: Cached> Listing for Pages<'_, K> {
    fn add(&mut self, page: &str) -> serde_json::Result<PageMetadata> {
        let page: Page<K> = serde_json::from_str(page)?;
        // Deduplicated page by page: otherwise shared parts would take memory until the last page.
        self.objects.extend(page.items.into_iter().map(|mut object| {
            object.trim();
            self.cache.share(&mut object);
            object
        }));
        Ok(page.metadata)
    }

    fn end(self: Box<Self>, revision: u64, asked: u64) -> usize {
        let Self { cache, objects } = *self;
        let number = objects.len();
        cache.replace(objects, revision, asked);
        number
    }
}

#[derive(Deserialize)]
struct Page<K> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

/// Metadata of a page.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    token: String,
}

/// Event of a watch.
enum Event<K> {
    Object { object: K, deleted: bool },
    Bookmark(Reply),
    Error(Box<Status>),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum EventMember {
    Type,
    Object,
    #[serde(other)]
    Other,
}

/// Reads the object of an event whose type is known.
struct EventObject<K>(EventType, PhantomData<K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for EventObject<K> {
    type Value = Event<K>;

    fn deserialize<D: Deserializer<'de>>(self, object: D) -> Result<Event<K>, D::Error> {
        match self.0 {
            EventType::Added | EventType::Modified | EventType::Deleted => Ok(Event::Object {
                object: K::deserialize(object)?,
                deleted: matches!(self.0, EventType::Deleted),
            }),
            EventType::Bookmark => Reply::deserialize(object).map(Event::Bookmark),
            EventType::Error => Status::deserialize(object).map(|status| Event::Error(Box::new(status))),
        }
    }
}

/// Reads the members of an event. kube's `WatchEvent` has a second deserializer of each kind, for
/// an object that precedes the type; servers written in Go send the type first.
struct EventMembers<K>(PhantomData<K>);

impl<'de, K: DeserializeOwned> Visitor<'de> for EventMembers<K> {
    type Value = Event<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of a watch")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Event<K>, A::Error> {
        let (mut kind, mut event) = (None::<EventType>, None);
        let mut early = None::<Box<RawValue>>;
        while let Some(member) = members.next_key()? {
            match (member, kind) {
                (EventMember::Type, _) => kind = Some(members.next_value()?),
                (EventMember::Object, Some(kind)) => {
                    event = Some(members.next_value_seed(EventObject(kind, PhantomData))?);
                }
                (EventMember::Object, None) => early = Some(members.next_value()?),
                (EventMember::Other, _) => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        match (event, kind, early) {
            (Some(event), ..) => Ok(event),
            (None, Some(kind), Some(object)) => EventObject(kind, PhantomData)
                .deserialize(&mut serde_json::Deserializer::from_str(object.get()))
                .map_err(A::Error::custom),
            (None, None, _) => Err(A::Error::missing_field("type")),
            (None, Some(_), None) => Err(A::Error::missing_field("object")),
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Event<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EventMembers(PhantomData))
    }
}

/// Reason why a watch ended.
enum End {
    /// Resume from the newest revision.
    Resume,
    /// The history is compacted, or a list was requested.
    Relist,
}

/// Maintains `cache` until `cancel`.
pub(crate) async fn run(
    cache: Arc<dyn Reflected>,
    client: kube::Client,
    resource: Resource,
    cancel: CancellationToken,
) {
    let follow = async {
        let mut backoff = BACKOFF.0;
        loop {
            match list(&*cache, &client, &resource).await {
                Ok(()) => {
                    backoff = BACKOFF.0;
                    follow(&*cache, &client, &resource).await;
                }
                Err(error) => {
                    warn!(resource = resource.plural, %error, "list failed");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow => {}
    }
}

async fn list(cache: &dyn Reflected, client: &kube::Client, resource: &Resource) -> Result<(), request::Error> {
    let asked = cache.asked();
    let mut listing = cache.list();
    let mut token = String::new();
    loop {
        let mut path = format!("{}?limit={PAGE}", request::path(resource, "", "", ""));
        if !token.is_empty() {
            path.push_str("&continue=");
            path.push_str(&escape(&token));
        }
        let page = request::text(client, Method::GET, path, JSON, Vec::new()).await?;
        let metadata = listing.add(&page).map_err(kube::Error::SerdeError)?;
        if metadata.token.is_empty() {
            let revision = metadata.resource_version.parse().unwrap_or(0);
            let objects = listing.end(revision, asked);
            debug!(resource = resource.plural, objects, revision, "listed");
            return Ok(());
        }
        token = metadata.token;
    }
}

/// Watches until a new list is needed, also if watching fails repeatedly: history that cannot be
/// read may be gone.
async fn follow(cache: &dyn Reflected, client: &kube::Client, resource: &Resource) {
    let mut backoff = BACKOFF.0;
    let mut failures = 0_u32;
    loop {
        let (before, began) = (cache.revision(), Instant::now());
        let ended = tokio::select! {
            () = cache.refresh().notified() => Ok(End::Relist),
            ended = watch(cache, client, resource) => ended,
        };
        if cache.listed() < cache.asked() {
            return;
        }
        match ended {
            Ok(End::Relist) => return,
            Ok(End::Resume) => {}
            Err(error) => {
                failures += 1;
                debug!(resource = resource.plural, %error, failures, "watch failed");
                if failures >= FAILURES {
                    warn!(resource = resource.plural, %error, "watches fail, listing again");
                    return;
                }
            }
        }
        // A watch that ends at once without events would be restarted without a pause.
        if cache.revision() > before || began.elapsed() >= BACKOFF.1 {
            backoff = BACKOFF.0;
            failures = 0;
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

async fn watch(cache: &dyn Reflected, client: &kube::Client, resource: &Resource) -> Result<End, kube::Error> {
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
        request::path(resource, "", "", ""),
        cache.revision()
    );
    let request = Request::builder()
        .uri(path)
        .header(http::header::ACCEPT, JSON)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let stream = match client.request_stream(request).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) if status.code == 410 => return Ok(End::Relist),
        Err(error) => return Err(error),
    };
    let mut lines = std::pin::pin!(stream.lines());
    loop {
        let Ok(line) = tokio::time::timeout(SILENCE, lines.try_next()).await else {
            warn!(resource = resource.plural, "watch fell silent");
            return Ok(End::Resume);
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(End::Resume),
            Err(error) if is_cut_off(&error) => return Ok(End::Resume),
            Err(error) => return Err(kube::Error::ReadEvents(error)),
        };
        match cache.change(&line) {
            Ok(None) => {}
            // The server ended within the line.
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(kube::Error::SerdeError(error)),
            Ok(Some(status)) => {
                debug!(
                    resource = resource.plural,
                    code = status.code,
                    message = status.message,
                    "watch refused"
                );
                return Ok(End::Relist);
            }
        }
    }
}

/// True if the connection ended within an answer, as when the server is restarted.
fn is_cut_off(error: &io::Error) -> bool {
    let first = error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    let mut causes = iter::successors(first, |&error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::UnexpectedEof)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use controlplane_plan::pod::Pod;
    use controlplane_plan::step::PODS;
    use kube::client::Body;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_at_once_is_not_asked_for_without_end() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            counted.fetch_add(u32::from(watching), Ordering::Relaxed);
            let list = br#"{"metadata":{"resourceVersion":"5"},"items":[]}"#.to_vec();
            let answer = http::Response::new(Body::from(if watching { Vec::new() } else { list }));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let client = kube::Client::new(server, "default");
        let following = run(Cache::<Pod>::new(), client, PODS, CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_mins(1), following).await.is_err());
        let asked = asked.load(Ordering::Relaxed);
        assert!((2..20).contains(&asked), "{asked} times in a minute");
    }

    #[test]
    fn events_are_read_in_any_order_of_their_members() {
        let cache = Cache::<Pod>::new();
        let read = |line: &str| match cache.change(line) {
            Ok(None) => format!("{}, {} pods", cache.revision(), cache.all().len()),
            Ok(Some(status)) => format!("{} {}", status.code, status.reason),
            Err(error) => format!("cut off: {}", error.is_eof()),
        };
        let pod = |version: u32| format!(r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"more":[1]}}"#);
        for (line, expected) in [
            (format!(r#"{{"type":"ADDED","object":{}}}"#, pod(5)), "5, 1 pods"),
            (
                format!(r#"{{"more":{{}},"object":{},"type":"MODIFIED"}}"#, pod(6)),
                "6, 1 pods",
            ),
            (format!(r#"{{"type":"ADDED","object":{}"#, pod(7)), "cut off: true"),
            (
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}"#.to_owned(),
                "8, 1 pods",
            ),
            (format!(r#"{{"object":{},"type":"DELETED"}}"#, pod(9)), "9, 0 pods"),
            (
                r#"{"type":"ERROR","object":{"code":410,"reason":"Expired"}}"#.to_owned(),
                "410 Expired",
            ),
            (r#"{"type":"OTHER","object":{}}"#.to_owned(), "cut off: false"),
            (format!(r#"{{"object":{}}}"#, pod(9)), "cut off: false"),
            (r#"{"type":"ADDED"}"#.to_owned(), "cut off: false"),
        ] {
            assert_eq!(read(&line), expected, "{line}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("connection")]
    struct Around(#[source] io::Error);

    #[test]
    fn a_connection_that_ends_within_an_answer_is_no_error_of_the_server() {
        let within = io::Error::new(io::ErrorKind::UnexpectedEof, "the body ended");
        assert!(is_cut_off(&io::Error::other(Around(within))));
        assert!(!is_cut_off(&io::Error::other("too long")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_cannot_be_read_does_not_freeze_the_cache() {
        let lists = Arc::new(AtomicU32::new(0));
        let counted = lists.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let answer = if watching {
                r#"{"type":"MODIFIED","object":{"metadata":{"name":["odd"]}}}"#.to_owned()
            } else {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                format!(r#"{{"metadata":{{"resourceVersion":"{number}"}},"items":[]}}"#)
            };
            let answer = http::Response::new(Body::from(answer.into_bytes()));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let cache = Cache::<Pod>::new();
        let client = kube::Client::new(server, "default");
        let following = run(cache.clone(), client, PODS, CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_mins(1), following).await.is_err());
        let lists = lists.load(Ordering::Relaxed);
        assert!((3..10).contains(&lists), "{lists} lists in a minute");
        assert_eq!(cache.revision(), u64::from(lists - 1));
    }
}
