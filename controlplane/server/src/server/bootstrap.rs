//! Objects that every cluster has from the start. They are created through the router, like all
//! others, and many of them concurrently, so that the writes share a commit.

mod own_service;
mod servers;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::{join, join_all, try_join_all};
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::civil::Date;
use serde_json::{Value, json};
use store::{Attributes, CommitError, Key, Prefix, Store, Write};
use thiserror::Error;
use tower::ServiceExt;

use crate::authn::identity::{Assumed, MASTERS, User, assume};
use crate::authn::pki::FRONT_PROXY;
use crate::authn::tokens::day;
use crate::authz::policy::{self, PolicyError, Repair, Wanted};
use crate::server::flow_control;
use crate::server::shared::Options;
use own_service::Own;

/// Namespaces that are always there.
pub(crate) const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Priority classes of the cluster's own parts: name, value, description.
pub(crate) const PRIORITY_CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// The namespace of the cluster's own parts.
const HOME: &str = "kube-system";

/// `ConfigMap` with the date since which uses of Secret-based tokens are tracked.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Name of the default `StorageClass`. Differs from `local-path`, the class of Rancher's
/// provisioner of the same kind of volumes.
const CLASS: &str = "skiff-local";
const PROVISIONER: &str = "skiff.dev/local-path";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Failure to create the first objects.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// The server refused.
    #[error("{method} {path}: the answer was {code}")]
    Refused {
        /// Method of the request.
        method: Method,
        /// Path of the request.
        path: String,
        /// HTTP status.
        code: StatusCode,
    },
    /// The request could not be put together.
    #[error("{method} {path}")]
    Request {
        /// Method of the request.
        method: Method,
        /// Path of the request.
        path: String,
        /// Cause of the failure.
        #[source]
        source: http::Error,
    },
    /// A form that the store does not take: a mistake of this module.
    #[error("note what the cluster was given")]
    Form(#[from] store::InvalidValue),
    /// The note cannot be stored; it is written again at the next start.
    #[error("note what the cluster was given")]
    Note(#[from] CommitError),
    /// The default roles are not readable.
    #[error("read what every cluster has")]
    Policy(#[from] PolicyError),
}

/// An object that every cluster has.
struct First {
    path: &'static str,
    body: Value,
}

fn namespaces() -> impl Iterator<Item = First> {
    NAMESPACES.into_iter().map(|name| First {
        path: "/api/v1/namespaces",
        body: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
    })
}

/// Objects that are created after the namespaces.
fn firsts() -> impl Iterator<Item = First> {
    PRIORITY_CLASSES.into_iter().map(|(name, value, description)| First {
        path: "/apis/scheduling.k8s.io/v1/priorityclasses",
        body: json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        }),
    })
}

/// Entry of a `ConfigMap` that the server maintains; other entries stay.
struct Published {
    namespace: &'static str,
    name: &'static str,
    key: &'static str,
    value: String,
}

/// The authority, for servers that extend this one, and with the server's address for nodes that join: as kubeadm publishes
/// it (`cmd/kubeadm/app/phases/bootstraptoken/clusterinfo/clusterinfo.go`).
fn published(options: &Options) -> Vec<Published> {
    let Some(authority) = &options.authority else {
        return Vec::new();
    };
    let (encoded, url) = (STANDARD.encode(authority.as_bytes()), &options.url);
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {encoded}\n    server: {url}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
    );
    let trust = |key, value| Published {
        namespace: HOME,
        name: "extension-apiserver-authentication",
        key,
        value,
    };
    let mut all = vec![
        trust("client-ca-file", authority.to_string()),
        Published {
            namespace: "kube-public",
            name: "cluster-info",
            key: "kubeconfig",
            value: kubeconfig,
        },
    ];
    if let Some(front_proxy) = &options.front_proxy {
        let list = |text: &str| json!([text]).to_string();
        all.extend([
            trust("requestheader-allowed-names", list(FRONT_PROXY)),
            trust("requestheader-client-ca-file", front_proxy.authority().to_owned()),
            trust("requestheader-extra-headers-prefix", list("X-Remote-Extra-")),
            trust("requestheader-group-headers", list("X-Remote-Group")),
            trust("requestheader-uid-headers", list("X-Remote-Uid")),
            trust("requestheader-username-headers", list("X-Remote-User")),
        ]);
    }
    all
}

fn tracking(today: &str) -> First {
    First {
        path: "/api/v1/namespaces/kube-system/configmaps",
        body: json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRACKING}, "data": {"since": today},
        }),
    }
}

/// Interval of the checks for deleted objects that a cluster needs.
const RESYNC_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which a server renews its entry for the other servers.
const TELLING: Duration = Duration::from_secs(5);

/// Recreates missing system namespaces and the server's own Service, for as long as it is polled;
/// and retries objects that could not be created at the start.
pub(crate) async fn heal(router: Router, store: &Store, options: &Options, whole: &AtomicBool) -> Infallible {
    let client = Client::new(router);
    loop {
        tokio::time::sleep(RESYNC_INTERVAL).await;
        if !whole.load(Ordering::Relaxed) {
            let made = make(&client, store, options).await;
            whole.store(made.is_ok_and(|whole| whole), Ordering::Relaxed);
        }
        let is_missing = |group: &str, plural: &str, namespace: &str, name: &str| {
            Key::new(group, plural, namespace, name).is_ok_and(|key| store.get(&key).is_none())
        };
        let missing = NAMESPACES.map(|name| is_missing("", "namespaces", "", name));
        let untold = is_missing("", "configmaps", HOME, TRACKING);
        let told = untold.then(|| tracking(&day((options.clock)())));
        let names = namespaces()
            .zip(missing)
            .filter_map(|(first, missing)| missing.then_some(first))
            .chain(told);
        let mut own = own_service::objects(options, own_service::own_address(options), &servers::known(store));
        own.retain(|own| is_missing(own.group, own.plural, own.namespace, own_service::NAME));
        let creations = names
            .map(|first| (first.path.to_owned(), first.body))
            .chain(own.into_iter().map(|own| (own.path(), own.object)));
        for (path, body) in creations.collect::<Vec<_>>() {
            tracing::info!(path, "what every cluster has is missing, and made anew");
            if let Err(error) = client.send(Method::POST, path, body).await {
                tracing::warn!(%error, "what every cluster has cannot be made anew");
            }
        }
    }
}

/// Address that is published to the other servers of a shared store.
fn shared_address(store: &Store, options: &Options) -> Option<IpAddr> {
    own_service::own_address(options).filter(|_| store.is_shared())
}

/// Has the server's own Service lead to all servers that share the store and are there, and to this one also where the
/// machine gets another address, for as long as it is polled.
pub(crate) async fn follow(router: Router, store: &Store, options: &Options) -> Infallible {
    let Some(begun) = own_service::own_address(options) else {
        return std::future::pending().await;
    };
    // That of a router in front of the machine never moves with it.
    let is_local = own_service::is_here(begun);
    let client = Client::new(router);
    loop {
        tokio::time::sleep(TELLING).await;
        let address = own_service::current(begun, is_local);
        if store.is_shared()
            && let Err(error) = servers::tell(store, address, &(options.clock)().to_string()).await
        {
            tracing::warn!(%error, "the other servers are not told of this one");
        }
        let own = own_service::objects(options, Some(address), &servers::known(store)).into_iter();
        for own in own.filter(|own| own.follows) {
            let key = Key::new(own.group, own.plural, own.namespace, own_service::NAME).ok();
            let found = key.and_then(|key| store.get(&key));
            let found: Option<Value> = found.and_then(|found| serde_json::from_slice(&found.bytes).ok());
            if found.is_some_and(|found| own_service::led_to(&found) == own_service::led_to(&own.object)) {
                continue;
            }
            if let Err(error) = client.keep(store, own).await {
                tracing::warn!(%error, "the server's own Service does not lead to all servers");
            }
        }
    }
}

/// Creates the missing objects and returns true if all could be created. Namespaces are required;
/// other objects that cannot be created, because of a quota or a taken address, are retried while
/// the server runs.
pub(crate) async fn run(router: Router, store: &Store, options: &Options) -> Result<bool, BootstrapError> {
    let client = Client::new(router);
    let create = |First { path, body }| client.send(Method::POST, path.to_owned(), body);
    try_join_all(namespaces().map(create)).await?;
    make(&client, store, options).await
}

async fn make(client: &Client, store: &Store, options: &Options) -> Result<bool, BootstrapError> {
    let create = |First { path, body }| client.send(Method::POST, path.to_owned(), body);
    let (mut made, class) = join(join_all(firsts().map(create)), client.give_class(store)).await;
    made.push(class);
    if let Some(address) = shared_address(store, options) {
        made.extend(
            servers::tell(store, address, &(options.clock)().to_string())
                .await
                .err()
                .map(Err),
        );
    }
    let own = own_service::objects(options, own_service::own_address(options), &servers::known(store)).into_iter();
    made.extend(join_all(own.map(|own| client.keep(store, own))).await);
    made.push(client.send_all(flow_control::changes(store)).await);
    for published in published(options) {
        if let Err(error) = client.publish(store, &published).await {
            // The ConfigMap may be immutable; this server does not need it.
            tracing::warn!(%error, name = published.name, "what others trust the server by is not published");
        }
    }
    if let Err(error) = client.track(store, &day((options.clock)())).await {
        tracing::warn!(%error, "since when uses of tokens are written down is not published");
    }
    let wanted = policy::wanted()?.into_iter();
    made.extend(join_all(wanted.map(|wanted| client.provide(store, wanted))).await);
    let mut whole = true;
    for error in made.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "what every cluster has cannot be made");
        whole = false;
    }
    Ok(whole)
}

/// The server as its own client.
pub(crate) struct Client(Assumed<Router>);

impl Client {
    pub(crate) fn new(router: Router) -> Self {
        let user = User::new("system:apiserver", [MASTERS]);
        Self(assume(
            user,
            concat!("kube-apiserver/v", env!("CARGO_PKG_VERSION")),
            router,
        ))
    }

    /// Creates a role or binding, or adds missing rules or subjects to it.
    async fn provide(&self, store: &Store, wanted: Wanted) -> Result<(), BootstrapError> {
        let group = policy::GROUP;
        let namespace = if wanted.namespace.is_empty() {
            String::new()
        } else {
            format!("namespaces/{}/", wanted.namespace)
        };
        let all = format!("/apis/{group}/v1/{namespace}{}", wanted.plural);
        let key = Key::new(group, wanted.plural, &wanted.namespace, &wanted.name).ok();
        let Some(existing) = key.and_then(|key| store.get(&key)) else {
            return self.send(Method::POST, all, wanted.object).await;
        };
        let one = format!("{all}/{}", wanted.name);
        let existing: Value = serde_json::from_slice(&existing.bytes).unwrap_or_default();
        match policy::compare(&wanted.object, &existing) {
            Repair::None => Ok(()),
            Repair::Update(new) => self.send(Method::PUT, one, new).await,
            Repair::Replace => {
                self.send(Method::DELETE, one, Value::Null).await?;
                self.send(Method::POST, all, wanted.object).await
            }
        }
    }

    /// Creates the `StorageClass` of directories on the nodes, once in the life of a cluster: one
    /// that an operator deletes stays deleted. It is the default class, unless the cluster has
    /// another default.
    async fn give_class(&self, store: &Store) -> Result<(), BootstrapError> {
        let Ok(mark) = Key::new("skiff", "given", "", CLASS) else {
            return Ok(());
        };
        if store.get(&mark).is_some() {
            return Ok(());
        }
        let classes = store.present(&Prefix::resource("storage.k8s.io", "storageclasses"));
        let classes = classes.iter().map(|entry| serde_json::from_slice(&entry.bytes));
        let classes: Vec<StorageClass> = classes.filter_map(Result::ok).collect();
        // An older version's has another name.
        if !classes.iter().any(|class| class.provisioner == PROVISIONER) {
            let annotations = classes.iter().filter_map(|class| class.metadata.annotations.as_ref());
            let other = annotations
                .filter_map(|own| own.get(DEFAULT_CLASS))
                .any(|own| own == "true");
            let class = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": CLASS, "annotations": {DEFAULT_CLASS: (!other).to_string()}},
                "provisioner": PROVISIONER, "reclaimPolicy": "Delete",
                "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
            });
            let all = "/apis/storage.k8s.io/v1/storageclasses".to_owned();
            self.send(Method::POST, all, class).await?;
        }
        let value = json!({"metadata": {"name": CLASS, "resourceVersion": ""}}).to_string();
        let write = Write::Create {
            key: mark,
            value: store::Value::parse(value.into_bytes())?,
            attributes: Attributes::default(),
            within: None,
        };
        store.commit(write).await?;
        Ok(())
    }

    /// Creates one of the objects of the server's own Service, or brings it up to date.
    async fn keep(&self, store: &Store, own: Own) -> Result<(), BootstrapError> {
        let name = own_service::NAME;
        let key = Key::new(own.group, own.plural, own.namespace, name).ok();
        let (path, exists) = (own.path(), key.as_ref().is_some_and(|key| store.get(key).is_some()));
        match (exists, own.follows) {
            (false, _) => self.send(Method::POST, path, own.object).await,
            (true, true) => self.send(Method::PUT, format!("{path}/{name}"), own.object).await,
            (true, false) => match key.and_then(|key| own.widened(&store.get(&key)?.bytes)) {
                Some(wider) => self.send(Method::PUT, format!("{path}/{name}"), wider).await,
                None => Ok(()),
            },
        }
    }

    /// Creates a `ConfigMap` with the entry, or brings the entry up to date.
    async fn publish(&self, store: &Store, published: &Published) -> Result<(), BootstrapError> {
        let Published {
            namespace,
            name,
            key,
            value,
        } = published;
        let all = format!("/api/v1/namespaces/{namespace}/configmaps");
        let wanted = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {*key: value},
        });
        let found = Key::new("", "configmaps", namespace, name).ok();
        let Some(existing) = found.and_then(|found| store.get(&found)) else {
            return self.send(Method::POST, all, wanted).await;
        };
        let mut existing: Value = serde_json::from_slice(&existing.bytes).unwrap_or_default();
        let before = existing.pointer(&format!("/data/{key}")).and_then(Value::as_str);
        if before == Some(value) {
            return Ok(());
        }
        if let Some(object) = existing.as_object_mut() {
            let data = object.entry("data").or_insert_with(|| json!({}));
            if let Some(data) = data.as_object_mut() {
                data.insert((*key).to_owned(), value.as_str().into());
            }
        }
        self.send(Method::PUT, format!("{all}/{name}"), existing).await
    }

    /// Publishes the date since which uses of Secret-based tokens are tracked.
    async fn track(&self, store: &Store, today: &str) -> Result<(), BootstrapError> {
        let First { path, mut body } = tracking(today);
        let key = Key::new("", "configmaps", HOME, TRACKING).ok();
        let Some(existing) = key.and_then(|key| store.get(&key)) else {
            return self.send(Method::POST, path.to_owned(), body).await;
        };
        let existing: Value = serde_json::from_slice(&existing.bytes).unwrap_or_default();
        let since = existing.pointer("/data/since").and_then(Value::as_str);
        if since.is_some_and(|since| since.len() == today.len() && since.parse::<Date>().is_ok()) {
            return Ok(());
        }
        let data = existing.get("data").and_then(Value::as_object).cloned();
        let mut data = data.unwrap_or_default();
        data.insert("since".to_owned(), today.into());
        if let Some(body) = body.as_object_mut() {
            body.insert("data".to_owned(), data.into());
            body.insert(
                "metadata".to_owned(),
                existing.get("metadata").cloned().unwrap_or_default(),
            );
        }
        self.send(Method::PUT, format!("{path}/{TRACKING}"), body).await
    }

    /// Sends objects at once; an error is the first refusal.
    pub(crate) async fn send_all(&self, all: Vec<(Method, String, Value)>) -> Result<(), BootstrapError> {
        let sent = all
            .into_iter()
            .map(|(method, path, object)| self.send(method, path, object));
        join_all(sent).await.into_iter().collect()
    }

    /// Sends an object; a conflict counts as success.
    pub(crate) async fn send(&self, method: Method, path: String, object: Value) -> Result<(), BootstrapError> {
        self.send_as(method, path, "application/json", object).await
    }

    /// Applies a configuration.
    pub(crate) async fn apply(&self, path: String, object: Value) -> Result<(), BootstrapError> {
        self.send_as(Method::PATCH, path, "application/apply-patch+yaml", object)
            .await
    }

    /// Sends an object or a patch of another form than JSON.
    pub(crate) async fn send_as(
        &self,
        method: Method,
        path: String,
        form: &str,
        object: Value,
    ) -> Result<(), BootstrapError> {
        let body = if object.is_null() {
            Body::empty()
        } else {
            Body::from(object.to_string())
        };
        let request = Request::builder()
            .method(&method)
            .uri(&path)
            .header(CONTENT_TYPE, form)
            .body(body);
        let request = match request {
            Ok(request) => request,
            Err(source) => return Err(BootstrapError::Request { method, path, source }),
        };
        let code = match self.0.clone().oneshot(request).await {
            Ok(response) => response.status(),
            Err(never) => match never {},
        };
        if code.is_success() || code == StatusCode::CONFLICT {
            return Ok(());
        }
        Err(BootstrapError::Refused { method, path, code })
    }
}
