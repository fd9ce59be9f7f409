//! The ConfigMaps and Secrets that volumes of this node show: one watch for each, however many pods share it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long the first answer of a watch is waited for, before the object is asked for by itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// Objects that are watched at a time: each watch is a connection.
const MOST: usize = 1024;

/// What kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// What the watch of an object has shown last.
#[derive(Clone, Debug, Default)]
pub(crate) enum Seen {
    /// Nothing yet.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

/// An object that is watched for as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct Object {
    seen: watch::Receiver<Seen>,
    _watching: JoinSet<()>,
}

impl Object {
    /// Tells of changes from now on, the first sight among them.
    pub(crate) fn changes(&self) -> watch::Receiver<Seen> {
        let mut changes = self.seen.clone();
        changes.mark_unchanged();
        changes
    }

    /// What it is now; waits for the first sight.
    pub(crate) async fn look(&self) -> Seen {
        let mut seen = self.seen.clone();
        let known = seen.wait_for(|seen| !matches!(seen, Seen::Unknown));
        match tokio::time::timeout(PATIENCE, known).await {
            Ok(Ok(seen)) => seen.clone(),
            Ok(Err(_)) | Err(_) => Seen::Unknown,
        }
    }
}

type Place = (Kind, String, String);

/// All that are watched.
pub(crate) struct Objects {
    client: Client,
    known: Mutex<BTreeMap<Place, Weak<Object>>>,
}

impl Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::new(BTreeMap::new()),
        }
    }

    /// The object, if somebody watches it.
    pub(crate) fn known(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let place = (kind, namespace.to_owned(), name.to_owned());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&place).and_then(Weak::upgrade)
    }

    /// Watches an object, or joins in the watch that there is; nothing where there are as many as there may be.
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
        match kind {
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                watching.spawn(keep(api, own, sender, |object| Seen::ConfigMap(Arc::new(object))));
            }
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                watching.spawn(keep(api, own, sender, |object| Seen::Secret(Arc::new(object))));
            }
        }
        let object = Arc::new(Object {
            seen,
            _watching: watching,
        });
        known.insert(place, Arc::downgrade(&object));
        Some(object)
    }
}

async fn keep<K>(api: Api<K>, name: String, sender: watch::Sender<Seen>, see: fn(K) -> Seen)
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
                tracing::debug!(name, %error, "the watch of an object that volumes show is interrupted");
                continue;
            }
        };
        sender.send_replace(seen);
    }
}
