//! The controllers and the scheduler: ordinary clients of the one API.
//!
//! Each authenticates as the user that stock Kubernetes gives it, so that authorization and the audit log tell them
//! apart. What to do is decided in `controlplane-plan`; this crate watches, asks a plan, and performs its steps.
//!
//! A new controller is a plan in `controlplane-plan`, a file here with its `listen` and its `Controller`, and a line in the
//! table of `setup.rs`. A kind that its plan reads is a line in the table of `kinds/caches.rs` (and of `step.rs` in
//! `controlplane-plan`, where resources have their names).
//!
//! All share one watch a kind (`kinds.rs`). A key whose plan did something is planned again only when the caches show
//! what was done (`driver.rs`), so a lost watch or a lost answer never makes anything twice.

mod accounts;
mod aggregation;
mod autoscaling;
mod cache;
mod certificates;
mod clock;
mod cluster_dns;
mod cron_jobs;
mod daemon_sets;
mod deployments;
mod disruption;
mod driver;
mod endpoints;
mod ephemeral;
mod events;
mod garbage;
mod jobs;
mod kinds;
mod load_balancers;
mod metrics;
mod namespaces;
mod nodes;
mod protection;
mod provisioner;
mod queue;
mod quotas;
mod reflector;
mod replica_sets;
mod request;
mod scheduler;
mod service_ranges;
mod setup;
mod signer;
mod stateful_sets;
mod ttl;
mod volumes;

use std::{convert::Infallible, sync::Arc, time::Duration};

use api::certificate::Request;
use k8s_openapi::jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use controlplane_plan::load_balancers::Addresses;
pub use controlplane_plan::ranges::PodRange;
pub use metrics::Metrics;

/// Makes a client for a user: `(user name, complete user agent)`.
///
/// In process that is `identity::assume(user, user_agent, router)`; elsewhere an HTTPS client with that user's
/// certificate. Service accounts also need the groups `system:serviceaccounts` and `system:serviceaccounts:kube-system`.
pub type Clients = Arc<dyn Fn(&str, &str) -> kube::Client + Send + Sync>;

/// The wall clock as the controllers read it. Tests under a paused clock give one that follows tokio's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Makes the token for a Secret: `(namespace, account, the account's uid, Secret)`. Nothing when it cannot be signed.
pub type Sign = Arc<dyn Fn(&str, &str, &str, &str) -> Option<String> + Send + Sync>;

/// Signs a request for a certificate: `(request, usages, seconds)`; the answer is PEM. Nothing when it cannot be signed.
pub type Certify = Arc<dyn Fn(&Request, &[String], Option<i32>) -> Option<String> + Send + Sync>;

/// Credentials that namespaces, service accounts and nodes are given.
#[derive(Clone)]
pub struct Credentials {
    /// The authority that the server's certificate is of, as PEM.
    pub certificate: Arc<str>,
    /// Makes tokens.
    pub sign: Sign,
    /// Makes certificates.
    pub certify: Certify,
    /// The names that clients reach the server by: no node is given a certificate for one of them.
    pub names: Arc<[String]>,
}

/// Choices of an operator.
#[derive(Clone)]
pub struct Options {
    /// The version that user agents name, for example `v1.36.0`.
    pub version: &'static str,
    /// Source of the times that are written into objects.
    pub clock: Clock,
    /// The name of the machine, for the events of the scheduler.
    pub machine: Arc<str>,
    /// The ranges that nodes without a `podCIDR` get a part of each from, for example `10.244.0.0/16`. Without any, nodes
    /// are left alone.
    pub pod_ranges: Vec<PodRange>,
    /// The place where Services of type `LoadBalancer` get their addresses; `None` leaves these to somebody else.
    pub load_balancer_addresses: Option<Addresses>,
    /// `None` leaves `kube-root-ca.crt` and Secrets that hold tokens to somebody else.
    pub credentials: Option<Credentials>,
    /// Counters of what is done.
    pub metrics: Metrics,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: "v1.36.0",
            clock: Arc::new(clock::wall),
            machine: Arc::from("localhost"),
            pod_ranges: vec![PodRange {
                address: [10, 244, 0, 0].into(),
                prefix: 16,
                node_prefix: 24,
            }],
            load_balancer_addresses: None,
            credentials: None,
            metrics: Metrics::default(),
        }
    }
}

/// Reason that the controllers stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They were told to.
    #[error("the controllers were stopped")]
    Cancelled,
    /// One of them panicked: a bug.
    #[error("a controller failed")]
    Failed(#[source] tokio::task::JoinError),
}

/// Longest time for writing the last events.
const LAST_EVENTS: Duration = Duration::from_secs(3);

/// Runs every controller and the scheduler until `cancel`; the first that ends stops the others. What they told of before
/// is written.
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
