//! The controllers and the scheduler: ordinary clients of the one API.
//!
//! Each authenticates as the user that stock Kubernetes gives it, so that authorization and the
//! audit log can tell them apart. Decisions are made in `controlplane-plan`; this crate watches,
//! asks for a plan, and performs its steps.
//!
//! | Room | Content |
//! |---|---|
//! | `setup` | the table of all controllers, and their start |
//! | `machinery` | caches, queues, the one loop that plans and performs, requests, events, metrics |
//! | `workloads` | workloads, their autoscalers, disruption budgets |
//! | `scheduler` | the scheduler |
//! | `network` | endpoints of Services, load balancers, Service CIDRs, the cluster's DNS |
//! | `storage` | claims and volumes: binding, provisioning, attaching, protection, ephemeral ones |
//! | `node` | health and taints of nodes, pod CIDRs, TTLs |
//! | `access` | service accounts, token Secrets, certificates, bootstrap tokens, aggregated roles |
//! | `objects` | objects of every kind: garbage collector, namespaces, quotas |
//!
//! A new controller is a plan in `controlplane-plan`, a file in its room with its `listen` and its
//! `Controller`, and a line in the table of `setup.rs`. A kind that its plan reads is a line in the
//! table of `machinery/kinds/caches.rs` (and of `step.rs` in `controlplane-plan`, where resources
//! have their names).
//!
//! All share one watch per kind (`machinery/kinds.rs`). A key whose plan had steps is planned again
//! only when the caches show their results (`machinery/driver.rs`), so a lost watch or a lost answer
//! never creates anything twice.

mod access;
mod machinery;
mod network;
mod node;
mod objects;
mod scheduler;
mod setup;
mod storage;
mod workloads;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::certificate::Request;
use api::cidr::Cidr;
use k8s_openapi::jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use controlplane_plan::network::load_balancers::Addresses;
pub use controlplane_plan::node::ranges::PodRange;
pub use machinery::metrics::Metrics;

/// Makes a client for a user: `(user name, complete user agent)`.
///
/// In process that is `identity::assume(user, user_agent, router)`; elsewhere an HTTPS client with
/// that user's certificate. Service accounts also need the groups `system:serviceaccounts` and
/// `system:serviceaccounts:kube-system`.
pub type Clients = Arc<dyn Fn(&str, &str) -> kube::Client + Send + Sync>;

/// The wall clock of the controllers. Tests under a paused clock pass one that follows tokio's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Makes the token for a Secret: `(namespace, account, the account's uid, Secret)`. `None` if it
/// cannot be signed.
pub type Sign = Arc<dyn Fn(&str, &str, &str, &str) -> Option<String> + Send + Sync>;

/// Signs a certificate request: `(request, usages, seconds)`; returns PEM. `None` if it cannot be
/// signed.
pub type Certify = Arc<dyn Fn(&Request, &[String], Option<i32>) -> Option<String> + Send + Sync>;

/// Credentials for namespaces, service accounts and nodes.
#[derive(Clone)]
pub struct Credentials {
    /// PEM of the CA of the server's certificate.
    pub certificate: Arc<str>,
    /// Makes tokens.
    pub sign: Sign,
    /// Makes certificates.
    pub certify: Certify,
    /// Host names of the API server: no node gets a certificate for one of them.
    pub names: Arc<[String]>,
}

/// Options of the controllers.
#[derive(Clone)]
pub struct Options {
    /// Version in user agents, for example `v1.36.0`.
    pub version: &'static str,
    /// Clock for the timestamps in objects.
    pub clock: Clock,
    /// Host name, for the scheduler's events.
    pub machine: Arc<str>,
    /// Pod ranges; each node without a `podCIDR` gets a part of each, for example of
    /// `10.244.0.0/16`. If empty, nodes are left alone.
    pub pod_ranges: Vec<PodRange>,
    /// Source of addresses for Services of type `LoadBalancer`; `None` leaves them to an external
    /// controller.
    pub load_balancer_addresses: Option<Addresses>,
    /// `None` leaves `kube-root-ca.crt` and token Secrets to an external controller.
    pub credentials: Option<Credentials>,
    /// Metrics of the controllers.
    pub metrics: Metrics,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: "v1.36.0",
            clock: Arc::new(machinery::clock::wall),
            machine: Arc::from("localhost"),
            pod_ranges: vec![PodRange {
                range: Cidr {
                    address: [10, 244, 0, 0].into(),
                    prefix: 16,
                },
                node_prefix: 24,
            }],
            load_balancer_addresses: None,
            credentials: None,
            metrics: Metrics::default(),
        }
    }
}

/// Reason why the controllers stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cancelled by the caller.
    #[error("the controllers were stopped")]
    Cancelled,
    /// A controller panicked: a bug.
    #[error("a controller failed")]
    Failed(#[source] tokio::task::JoinError),
}

/// Time limit for writing the last events.
const LAST_EVENTS: Duration = Duration::from_secs(3);

/// Runs every controller and the scheduler until `cancel`; the first that ends stops the others.
/// Events recorded before are still written.
pub async fn run(clients: Clients, options: Options, cancel: CancellationToken) -> Result<Infallible, Error> {
    let setup::Started {
        mut tasks,
        mut writer,
        ending,
    } = setup::start(&clients, &options, &cancel);
    let ended = tokio::select! {
        () = cancel.cancelled() => None,
        ended = tasks.join_next() => ended,
        ended = writer.join_next() => ended,
    };
    tasks.shutdown().await;
    ending.cancel();
    let written = tokio::time::timeout(LAST_EVENTS, async { while writer.join_next().await.is_some() {} }).await;
    if written.is_err() {
        warn!("not all events were written in time");
    }
    match ended {
        Some(Err(failure)) => Err(Error::Failed(failure)),
        Some(Ok(())) | None => Err(Error::Cancelled),
    }
}
