//! The server: its options, shared state and router.

pub(crate) mod blocking;
pub(crate) mod bootstrap;
pub(crate) mod dispatch;
pub(crate) mod flow_control;
pub mod fuzzing;
pub(crate) mod limits;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::cidr::Cidr;
use axum::Router;
use axum::body::Body;
use http::Request;
use k8s_openapi::jiff::Timestamp;
use store::{Measures, Store};

use crate::authn::tokens::{ISSUER, SigningKey, Tokens};
use crate::authz::Authorizer;
use crate::discovery::version::Version;
use crate::extensions::aggregation::{self, Aggregation, FrontProxy};
use crate::extensions::definitions::{self, Definitions};
use crate::node::agent::Network;
use crate::node::agents::Agents;
use crate::node::reverse::ReverseConnections;
use crate::ops::audit::Sink;
use crate::ops::metrics::Metrics;
use crate::ops::ui::{self, Attempts, Sessions, Writes};
use crate::server::bootstrap::BootstrapError;
use crate::server::flow_control::FlowControl;
use crate::server::limits::ResourceLimits;
use crate::storage::queues::Queues;
use crate::write::admission::policies::{self, Policies};
use crate::write::admission::webhooks::Webhooks;

/// The wall clock. Timers use `tokio::time`, which tests can pause.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// The wall clock.
    pub clock: Clock,
    /// Sink of audit records.
    pub audit: Option<Arc<dyn Sink>>,
    /// Access to the nodes' agents; without it, requests that need them get 503.
    pub agents: Option<Arc<dyn Agents>>,
    /// Connections that nodes behind NAT open for `agents`.
    pub reverse: Arc<ReverseConnections>,
    /// Key that signs service account tokens; without it there are none.
    pub signing_key: Option<Arc<SigningKey>>,
    /// Version that `/version` reports.
    pub version: Version,
    /// Advertised address of the server, as `host:port`; discovery shows it.
    pub address: String,
    /// URL for nodes that join, as `https://host:port`; `kube-public/cluster-info` shows it.
    pub url: String,
    /// The authority that signs clients' certificates, as PEM, for servers that extend this one and nodes that join.
    pub authority: Option<Arc<str>>,
    /// Client certificate for aggregated API servers; without it they are called without one.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// Usage of nodes and pods over time; without it, none is recorded.
    pub measures: Option<Arc<Measures>>,
    /// Further metrics of the process in the format of `/metrics`, appended to the server's own.
    pub metrics: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    /// Command-line flags of the process, as `/flagz` shows them: names and values.
    pub flags: Vec<(String, String)>,
    /// Range of Services' addresses, or one of each family, the usual one first: of 8 to 30 bits in version 4, of 64 to 126 in
    /// version 6. The first address of the first is the server's own.
    pub service_ranges: Vec<Cidr>,
    /// Issuers of service accounts' tokens: the first one issues, all are taken. At least one.
    pub issuers: Vec<String>,
    /// Audiences of tokens that the server itself takes.
    pub audiences: Vec<String>,
    /// Admission plugins that are turned off, by upstream's names.
    pub disabled_plugins: BTreeSet<String>,
    /// Requests without credentials pass as `system:anonymous`; otherwise they are refused.
    pub anonymous: bool,
    /// Authorizes all authenticated users (authorization mode `AlwaysAllow`).
    pub always_allow: bool,
}

impl Options {
    /// Options with a clock and defaults.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            audit: None,
            agents: None,
            reverse: Arc::default(),
            signing_key: None,
            version: Version::default(),
            address: "127.0.0.1:6443".to_owned(),
            url: "https://127.0.0.1:6443".to_owned(),
            authority: None,
            front_proxy: None,
            measures: None,
            metrics: None,
            flags: Vec::new(),
            service_ranges: vec![Cidr {
                address: [10, 96, 0, 0].into(),
                prefix: 12,
            }],
            issuers: vec![ISSUER.to_owned()],
            audiences: vec![ISSUER.to_owned()],
            disabled_plugins: BTreeSet::new(),
            anonymous: true,
            always_allow: false,
        }
    }

    /// An admission plugin is not turned off.
    pub(crate) fn admits(&self, plugin: &str) -> bool {
        self.disabled_plugins.is_empty() || !self.disabled_plugins.contains(plugin)
    }
}

/// State shared by all requests.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) network: Network,
    pub(crate) definitions: Definitions,
    pub(crate) authorizer: Authorizer,
    pub(crate) policies: Policies,
    pub(crate) webhooks: Webhooks,
    pub(crate) aggregation: Aggregation,
    pub(crate) tokens: Tokens,
    pub(crate) sessions: Sessions,
    pub(crate) attempts: Attempts,
    pub(crate) writes: Writes,
    /// Queues of writers in namespaces with quotas.
    pub(crate) quota_queues: Queues,
    /// Queues of writers of contended objects.
    pub(crate) object_queues: Queues,
    pub(crate) flow: FlowControl,
    pub(crate) limits: ResourceLimits,
    pub(crate) metrics: Metrics,
    /// Start time of the server.
    pub(crate) started: Timestamp,
    pub(crate) ready: AtomicBool,
    /// True if all bootstrap objects could be created at the start.
    whole: AtomicBool,
    pub(crate) stopping: AtomicBool,
}

/// The API server over a store. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// A server over a store that was opened with [`crate::storage::index`] and [`crate::storage::class`].
    pub fn new(store: Store, options: Options) -> Self {
        let tokens = Tokens::new(options.signing_key.clone(), options.issuers.clone());
        let metrics = Metrics::new(&options.version);
        let shared = Shared {
            flow: FlowControl::new(store.clone(), Arc::clone(&metrics.flow)),
            authorizer: Authorizer::new(store.clone()).allowing_all(options.always_allow),
            policies: Policies::new(store.clone()),
            webhooks: Webhooks::new(store.clone()),
            aggregation: Aggregation::new(store.clone()),
            definitions: Definitions::new(store.clone()),
            network: Network {
                store: store.clone(),
                agents: options.agents.clone(),
            },
            store,
            metrics,
            started: (options.clock)(),
            options,
            tokens,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
            writes: Writes::default(),
            quota_queues: Queues::default(),
            object_queues: Queues::default(),
            limits: ResourceLimits::new(),
            ready: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The router. A [`crate::authn::identity::User`] in a request's extensions is believed; a request without one shows a
    /// bearer token or is anonymous.
    pub fn router(&self) -> Router {
        let shared = Arc::clone(&self.shared);
        Router::new().fallback(move |request: Request<Body>| dispatch::handle(Arc::clone(&shared), request))
    }

    /// Creates the objects of every cluster (its first namespaces, roles, bindings and its own
    /// Service) and reports ready on `/readyz`.
    ///
    /// # Errors
    /// When an object cannot be stored.
    pub async fn bootstrap(&self) -> Result<(), BootstrapError> {
        crate::storage::allocation::repair(&self.shared.store, (self.shared.options.clock)()).await;
        let made = bootstrap::run(self.router(), &self.shared.store, &self.shared.options).await?;
        self.shared.whole.store(made, Ordering::Relaxed);
        self.shared.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Creates the objects that [`Self::bootstrap`] could not, and recreates deleted ones that a
    /// cluster needs; maintains the definitions of kinds, the `APIServices` and the status of
    /// policies, for as long as it is polled.
    pub async fn heal(&self) -> Infallible {
        let shared = &self.shared;
        let upkeep = definitions::run(Arc::clone(shared), self.router());
        let healed = bootstrap::heal(self.router(), &shared.store, &shared.options, &shared.whole);
        tokio::select! {
            never = upkeep => never,
            never = aggregation::run(Arc::clone(shared), self.router()) => never,
            never = flow_control::run(Arc::clone(shared), self.router()) => never,
            never = policies::run(Arc::clone(shared), self.router()) => never,
            never = healed => never,
            never = ui::measures::run(Arc::clone(shared), self.router()) => never,
            never = bootstrap::follow(self.router(), &shared.store, &shared.options) => never,
        }
    }

    /// Reports not ready from now on, so that clients go elsewhere.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Ends long-running requests, as if each watch had timed out; other requests go on.
    pub fn drain(&self) {
        self.shared.limits.ending().cancel();
    }
}
