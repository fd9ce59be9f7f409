//! ConfigMaps and Secrets that volumes of this node show: one watch for each, shared by all pods.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use common::task::JoinSet;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

/// Time to wait for the first answer of a watch, before the object is read with a GET.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of watched objects: as many as the connections to the server take.
const MOST: usize = 1024;

/// Time that an object is still watched after the last pod that shows it is gone: another pod of
/// its namespace often follows.
const LINGER: Duration = Duration::from_secs(30);

/// Maximum number of objects that are watched without a pod.
const LINGERING: usize = 16;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// State of an object as of its watch.
#[derive(Clone, Debug, Default)]
pub(crate) enum Seen {
    /// Not yet known.
    #[default]
    Unknown,
    /// The object does not exist.
    Absent,
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

/// Object that is watched while this handle is held.
#[derive(Debug)]
pub(crate) struct Object {
    seen: watch::Receiver<Seen>,
    /// Notified when the watch is interrupted.
    interrupted: Arc<Notify>,
    _watching: JoinSet<()>,
}

impl Object {
    /// Returns a receiver of changes from now on, including the first state.
    pub(crate) fn changes(&self) -> watch::Receiver<Seen> {
        let mut changes = self.seen.clone();
        changes.mark_unchanged();
        changes
    }

    /// Returns the current state; waits for the first one.
    pub(crate) async fn look(&self) -> Seen {
        let mut seen = self.seen.clone();
        let known = seen.wait_for(|seen| !matches!(seen, Seen::Unknown));
        match tokio::time::timeout(TIMEOUT, known).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) | Err(_) => Seen::Unknown,
        }
    }
}

type Place = (Kind, String, String);

/// All watched objects.
pub(crate) struct Objects {
    client: Client,
    known: Mutex<BTreeMap<Place, Weak<Object>>>,
    lingering: Mutex<JoinSet<()>>,
}

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::new(BTreeMap::new()),
            lingering: Mutex::default(),
        }
    }

    /// Releases an object of a pod that is gone. An unused object is watched for a while longer,
    /// unless the watch is interrupted: then its state may be stale, and the API would not let this
    /// node watch it again.
    pub(crate) fn leave(&self, object: Arc<Object>) {
        let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
        while lingering.try_join_next().is_some() {}
        // Another pod shows it, or has released it before.
        if Arc::strong_count(&object) > 1 || lingering.len() >= LINGERING {
            return;
        }
        lingering.spawn(async move {
            let interrupted = object.interrupted.notified();
            // The watch ends in both cases, unless the object is in use again.
            tokio::time::timeout(LINGER, interrupted).await.ok();
        });
    }

    /// Returns the object if it is being watched.
    pub(crate) fn known(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let place = (kind, namespace.to_owned(), name.to_owned());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&place).and_then(Weak::upgrade)
    }

    /// Watches an object, or shares its watch; `None` at the maximum number of watches.
    pub(crate) fn follow(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let place = (kind, namespace.to_owned(), name.to_owned());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = known.get(&place).and_then(Weak::upgrade) {
            return Some(object);
        }
        known.retain(|_, object| object.strong_count() > 0);
        if known.len() >= MOST {
            return None;
        }
        let (sender, seen) = watch::channel(Seen::Unknown);
        let mut watching = JoinSet::new();
        let (client, own) = (self.client.clone(), name.to_owned());
        let interrupted = Arc::new(Notify::new());
        let tell = Arc::clone(&interrupted);
        match kind {
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                watching.spawn(keep(api, own, sender, tell, |object| Seen::ConfigMap(Arc::new(object))));
            }
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                watching.spawn(keep(api, own, sender, tell, |object| Seen::Secret(Arc::new(object))));
            }
        }
        let object = Arc::new(Object {
            seen,
            interrupted,
            _watching: watching,
        });
        known.insert(place, Arc::downgrade(&object));
        Some(object)
    }
}

async fn keep<K>(api: Api<K>, name: String, sender: watch::Sender<Seen>, interrupted: Arc<Notify>, see: fn(K) -> Seen)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + k8s_openapi::Metadata
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let configuration = watcher::Config::default().fields(&format!("metadata.name={name}"));
    // A node may have a thousand of them: their pauses grow while the server is away.
    let mut changes = pin!(watch_objects(api, configuration).default_backoff());
    let mut listed = false;
    while let Some(change) = changes.next().await {
        let seen = match change {
            Ok(Event::Init) => {
                listed = false;
                continue;
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                listed = true;
                see(object)
            }
            Ok(Event::InitDone) if listed => continue,
            Ok(Event::InitDone | Event::Delete(_)) => Seen::Absent,
            Err(error) => {
                interrupted.notify_waiters();
                tracing::debug!(name, %error, "the watch of an object that volumes show is interrupted");
                continue;
            }
        };
        sender.send_replace(seen);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::get;
    use axum::{Json, Router};
    use http::Uri;
    use serde_json::json;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// API server that lists one ConfigMap and counts its watches; ends and rejects watches on
    /// request.
    struct Server {
        watches: Arc<AtomicUsize>,
        refuses: Arc<AtomicBool>,
        cut: Arc<Notify>,
    }

    impl Server {
        fn serve() -> (Self, Objects) {
            let server = Self {
                watches: Arc::default(),
                refuses: Arc::default(),
                cut: Arc::default(),
            };
            let (watches, refuses, cut) = (
                Arc::clone(&server.watches),
                Arc::clone(&server.refuses),
                Arc::clone(&server.cut),
            );
            let answer = move |uri: Uri| async move {
                if refuses.load(Ordering::Relaxed) {
                    return http::StatusCode::FORBIDDEN.into_response();
                }
                if uri.query().unwrap_or_default().contains("watch=true") {
                    watches.fetch_add(1, Ordering::Relaxed);
                    let ended = futures::stream::once(async move {
                        cut.notified().await;
                        Ok::<_, std::convert::Infallible>("")
                    });
                    return Body::from_stream(ended).into_response();
                }
                let object = json!({"metadata": {"name": "c", "resourceVersion": "5"}});
                let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "5"}, "items": [object]});
                Json(list).into_response()
            };
            let api = Router::new().route("/api/v1/namespaces/n/configmaps", get(answer));
            (server, Objects::new(Client::new(api, "n")))
        }
    }

    async fn shown(objects: &Objects) -> Arc<Object> {
        let object = objects.follow(Kind::ConfigMap, "n", "c").unwrap();
        assert!(matches!(object.look().await, Seen::ConfigMap(_)));
        // Its watch has begun.
        sleep(Duration::from_millis(1)).await;
        object
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_watched_on_for_the_next_pod_but_not_for_long() {
        let (server, objects) = Server::serve();
        objects.leave(shown(&objects).await);
        sleep(LINGER / 2).await;
        let object = shown(&objects).await;
        assert_eq!(server.watches.load(Ordering::Relaxed), 1);
        sleep(LINGER).await;
        assert!(objects.known(Kind::ConfigMap, "n", "c").is_some(), "a pod shows it");
        objects.leave(object);
        sleep(LINGER * 2).await;
        assert!(objects.known(Kind::ConfigMap, "n", "c").is_none(), "nobody shows it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_not_be_watched_any_more_is_not_shown_to_the_next_pod() {
        let (server, objects) = Server::serve();
        objects.leave(shown(&objects).await);
        server.refuses.store(true, Ordering::Relaxed);
        server.cut.notify_waiters();
        let gone = async {
            while objects.known(Kind::ConfigMap, "n", "c").is_some() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(LINGER / 2, gone).await.unwrap();
    }
}
