//! Keeps a cache in sync with the server: lists, then watches, and lists again only if the watch
//! cannot be resumed.

use std::{sync::Arc, time::Duration};

use controlplane_plan::step::Resource;
use futures::TryStreamExt;
use http::{Method, Request};
use kube::core::WatchEvent;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::machinery::cache::{Cache, Cached, Progress};
use crate::machinery::request::{self, JSON, escape};

const PAGE: usize = 500;
/// Timeout of a watch on the server; it is resumed where it stopped.
const WATCH_SECONDS: u32 = 300;
/// A watch without events for longer than its timeout is dead.
const SILENCE: Duration = Duration::from_secs(330);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Consecutive watches that may fail without an event, about ten seconds in all.
const FAILURES: u32 = 9;

#[derive(Deserialize)]
struct Page<K> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    token: String,
}

/// Reason why a watch ended.
enum End {
    /// Resume from the newest revision.
    Resume,
    /// The history is compacted, or a list was requested.
    Relist,
}

/// Maintains `cache` until `cancel`.
pub(crate) async fn run<K: Cached>(
    cache: Arc<Cache<K>>,
    client: kube::Client,
    resource: Resource,
    cancel: CancellationToken,
) {
    let follow = async {
        let mut backoff = BACKOFF.0;
        loop {
            match list(&cache, &client, &resource).await {
                Ok(()) => {
                    backoff = BACKOFF.0;
                    follow(&cache, &client, &resource).await;
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

async fn list<K: Cached>(cache: &Cache<K>, client: &kube::Client, resource: &Resource) -> Result<(), request::Error> {
    let asked = cache.asked();
    let mut objects: Vec<K> = Vec::new();
    let mut token = String::new();
    loop {
        let mut path = format!("{}?limit={PAGE}", request::path(resource, "", "", ""));
        if !token.is_empty() {
            path.push_str("&continue=");
            path.push_str(&escape(&token));
        }
        let page: Page<K> = request::send(client, Method::GET, path, JSON, Vec::new()).await?;
        // Deduplicated page by page: otherwise shared parts would take memory until the last page.
        objects.extend(page.items.into_iter().map(|mut object| {
            object.trim();
            cache.share(&mut object);
            object
        }));
        if page.metadata.token.is_empty() {
            let revision = page.metadata.resource_version.parse().unwrap_or(0);
            debug!(resource = resource.plural, objects = objects.len(), revision, "listed");
            cache.replace(objects, revision, asked);
            return Ok(());
        }
        token = page.metadata.token;
    }
}

/// Watches until a new list is needed, also if watching fails repeatedly: history that cannot be
/// read may be gone.
async fn follow<K: Cached>(cache: &Cache<K>, client: &kube::Client, resource: &Resource) {
    let mut backoff = BACKOFF.0;
    let mut failures = 0_u32;
    loop {
        let (before, began) = (cache.revision(), Instant::now());
        let ended = tokio::select! {
            () = cache.refresh.notified() => Ok(End::Relist),
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

async fn watch<K: Cached>(cache: &Cache<K>, client: &kube::Client, resource: &Resource) -> Result<End, kube::Error> {
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
    let stream = match client.request_events::<K>(request).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) if status.code == 410 => return Ok(End::Relist),
        Err(error) => return Err(error),
    };
    let mut stream = std::pin::pin!(stream);
    loop {
        let Ok(event) = tokio::time::timeout(SILENCE, stream.try_next()).await else {
            warn!(resource = resource.plural, "watch fell silent");
            return Ok(End::Resume);
        };
        match event? {
            None => return Ok(End::Resume),
            Some(WatchEvent::Added(mut object) | WatchEvent::Modified(mut object)) => {
                object.trim();
                cache.apply(object, false);
            }
            Some(WatchEvent::Deleted(mut object)) => {
                object.trim();
                cache.apply(object, true);
            }
            Some(WatchEvent::Bookmark(mark)) => cache.progress(mark.metadata.resource_version.parse().unwrap_or(0)),
            Some(WatchEvent::Error(status)) => {
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU32, Ordering},
    };

    use controlplane_plan::{pod::Pod, step::PODS};
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
