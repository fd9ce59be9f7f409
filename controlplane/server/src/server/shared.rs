//! State that all requests share, and the options of a server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::cidr::Cidr;
use k8s_openapi::jiff::Timestamp;
use store::{Measures, Store};

use crate::authn::oidc::Issuers;
use crate::authn::sessions::Sessions;
use crate::authn::tokens::{ISSUER, SigningKey, Tokens};
use crate::authz::Authorizer;
use crate::discovery::version::Version;
use crate::extensions::aggregation::{Aggregation, FrontProxy};
use crate::extensions::definitions::{Calls, Definitions};
use crate::node::agent::Network;
use crate::node::agents::Agents;
use crate::node::reverse::ReverseConnections;
use crate::ops::audit::Sink;
use crate::ops::metrics::Metrics;
use crate::ops::ui::attempts::Attempts;
use crate::ops::ui::writes::Writes;
use crate::server::flow_control::FlowControl;
use crate::server::limits::ResourceLimits;
use crate::storage::queues::Queues;
use crate::write::admission::policies::source::Policies;
use crate::write::admission::webhooks::source::Webhooks;

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
    /// Paths to which that is restricted; none for no restriction.
    pub anonymous_paths: Vec<String>,
    /// Issuers outside of the cluster whose tokens are taken.
    pub outside: Option<Arc<Issuers>>,
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
            anonymous_paths: Vec::new(),
            outside: None,
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
    pub(super) whole: AtomicBool,
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    /// State of a server that is not ready yet.
    pub(super) fn new(store: Store, options: Options) -> Self {
        let tokens = Tokens::new(options.signing_key.clone(), options.issuers.clone());
        let tokens = tokens.and(options.outside.clone(), &options.audiences);
        let metrics = Metrics::new(&options.version);
        Self {
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
        }
    }

    /// Parts that conversions go through.
    pub(crate) fn calls(&self) -> Calls<'_> {
        Calls {
            network: &self.network,
            metrics: &self.metrics,
        }
    }
}
