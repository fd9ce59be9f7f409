//! The aggregation layer (`staging/src/k8s.io/kube-aggregator`): group versions that servers behind Services serve.
//!
//! ```text
//! kinds of this server ─► `local`: an APIService for each of their group versions
//! APIService with a Service ─► `availability`: its condition, and the resources that its server tells
//!                           ─► `described`: its server's OpenAPI documents
//! request for its group version ─► authentication ─► authorization ─► `proxy` ─► the Service's endpoint
//! ```
//!
//! The server behind the Service learns who asks from the headers of a front proxy, which it believes because of the client
//! certificate beside them ([`FrontProxy`]). Discovery and OpenAPI have what all of them serve.

pub(crate) mod availability;
pub(crate) mod described;
mod front_proxy;
pub(crate) mod local;
pub(crate) mod proxy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use api::kinds::api_service::{GROUP, available};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::Value;
use store::{Entry, Prefix, Store};
use tokio_rustls::TlsConnector;

use crate::discovery::added::Added;
use crate::discovery::openapi::Documents;
use crate::discovery::openapi::described::Described;
use crate::extensions::definitions::Table;
use crate::storage::follower::{Follow, Follower};

pub use front_proxy::FrontProxy;

const PLURAL: &str = "apiservices";

fn prefix() -> Prefix {
    Prefix::resource(GROUP, PLURAL)
}

/// A group version that a server behind a Service serves.
pub(crate) struct Remote {
    /// Name of its `APIService`.
    name: String,
    group: String,
    version: String,
    namespace: String,
    service: String,
    port: i32,
    bundle: Vec<u8>,
    is_insecure: bool,
    is_available: bool,
    priority: (i32, i32),
    tls: OnceLock<Result<TlsConnector, String>>,
}

impl Remote {
    /// Server name for TLS.
    fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// Reads an `APIService` from the store; `None` for a group version that is served locally.
    fn of(entry: &Entry) -> Option<Self> {
        let read = serde_json::from_slice::<APIService>(&entry.bytes);
        let own =
            read.inspect_err(|error| tracing::error!(key = %entry.key, %error, "unreadable, so it serves nothing"));
        let own = own.ok()?;
        let is_available = available(&own).is_some_and(|condition| condition.status == "True");
        let spec = own.spec?;
        let service = spec.service?;
        Some(Self {
            name: entry.key.name().to_owned(),
            group: spec.group.unwrap_or_default(),
            version: spec.version.unwrap_or_default(),
            namespace: service.namespace.unwrap_or_default(),
            service: service.name.unwrap_or_default(),
            port: service.port.unwrap_or(443),
            bundle: spec.ca_bundle.map(|bundle| bundle.0).unwrap_or_default(),
            is_insecure: spec.insecure_skip_tls_verify == Some(true),
            is_available,
            priority: (spec.group_priority_minimum, spec.version_priority),
            tls: OnceLock::new(),
        })
    }
}

/// Snapshot of the remote group versions, by `APIService` name.
struct Remotes(BTreeMap<String, (u64, Option<Arc<Remote>>)>);

impl Follow for Remotes {
    fn prefixes() -> Vec<Prefix> {
        vec![prefix()]
    }

    fn read(store: &Store, before: Option<&Self>) -> Self {
        let entries = store.present(&prefix()).into_iter();
        let read = entries.map(|entry| {
            let name = entry.key.name().to_owned();
            let known = before.and_then(|before| before.0.get(&name));
            let known = known.filter(|(revision, _)| *revision == entry.revision);
            let remote = known.map_or_else(|| Remote::of(&entry).map(Arc::new), |(_, remote)| remote.clone());
            (name, (entry.revision, remote))
        });
        Self(read.collect())
    }
}

/// Group versions that aggregated API servers serve.
pub(crate) struct Aggregation {
    current: Follower<Remotes>,
    /// Resource lists that the backends returned last.
    told: RwLock<BTreeMap<String, Arc<Value>>>,
    /// OpenAPI documents of the backends.
    described: RwLock<BTreeMap<String, Arc<Described>>>,
    /// Documents of this server's kinds and the backends', made last.
    documents: Mutex<Option<Arc<Documents>>>,
}

impl Aggregation {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            current: Follower::new(store),
            told: RwLock::default(),
            described: RwLock::default(),
            documents: Mutex::default(),
        }
    }

    /// Lists all remote group versions.
    fn remotes(&self) -> Vec<Arc<Remote>> {
        let current = self.current.current();
        current.0.values().filter_map(|(_, remote)| remote.clone()).collect()
    }

    /// Server of a path of these segments, if it is not this one.
    pub(crate) fn of(&self, segments: &[String]) -> Option<Arc<Remote>> {
        match segments {
            // The group of `APIServices` itself is always served locally.
            [apis, group, version, ..] if apis == "apis" && group != GROUP => self.named(&format!("{version}.{group}")),
            [openapi, v3, path @ ..] if openapi == "openapi" && v3 == "v3" => {
                let path = path.join("/");
                let described = self.described.read().unwrap_or_else(PoisonError::into_inner);
                let mut own = described.iter().filter(|(_, own)| own.v3.contains_key(&path));
                own.find_map(|(name, _)| self.named(name))
            }
            _ => None,
        }
    }

    fn named(&self, name: &str) -> Option<Arc<Remote>> {
        let (_, remote) = self.current.current().0.get(name)?.clone();
        remote
    }

    /// Names of all `APIServices`, and if they are available.
    pub(crate) fn availability(&self) -> Vec<(String, bool)> {
        let current = self.current.current();
        let all = current.0.iter();
        let is_available = |remote: &Option<Arc<Remote>>| remote.as_ref().is_none_or(|remote| remote.is_available);
        all.map(|(name, (_, remote))| (name.clone(), is_available(remote)))
            .collect()
    }

    /// Drops the resource lists and documents of all other group versions.
    fn forget_others(&self, remotes: &[Arc<Remote>]) {
        let is_there = |name: &str| remotes.iter().any(|remote| remote.name == *name);
        let mut told = self.told.write().unwrap_or_else(PoisonError::into_inner);
        told.retain(|name, _| is_there(name));
        let mut described = self.described.write().unwrap_or_else(PoisonError::into_inner);
        described.retain(|name, _| is_there(name));
    }

    /// OpenAPI documents of a table's kinds and of the backends'; `None` while no backend has any.
    pub(crate) fn documents(&self, table: &Table) -> Option<Arc<Documents>> {
        let described = self.described.read().unwrap_or_else(PoisonError::into_inner);
        // An `APIService` that is gone takes its documents along at once.
        let others = described.iter().filter(|(name, _)| self.named(name).is_some());
        let others: Vec<Arc<Described>> = others.map(|(_, own)| Arc::clone(own)).collect();
        drop(described);
        if others.is_empty() {
            return None;
        }
        let made = table.documents().with(others);
        let mut kept = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_same(&made)) {
            return Some(Arc::clone(kept));
        }
        let made = Arc::new(made);
        *kept = Some(Arc::clone(&made));
        Some(made)
    }

    /// Additions of discovery to this server's own groups.
    pub(crate) fn added(&self) -> Vec<Added> {
        let remotes = self.remotes();
        let told = self.told.read().unwrap_or_else(PoisonError::into_inner);
        let added = remotes.iter().map(|remote| Added {
            group: remote.group.clone(),
            version: remote.version.clone(),
            is_current: remote.is_available,
            priority: remote.priority,
            resources: told.get(&remote.name).cloned(),
        });
        added.collect()
    }
}
