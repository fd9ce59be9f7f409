//! The node agent: registers the machine as a Node, and runs the pods that are bound to it.
//!
//! ```text
//! API ──watch──► pods ──one worker per pod──► plan ──► image, network, volumes, runtime
//!                                    └──status──► API
//! ```
//!
//! All of its state can be rebuilt from the API, the runtime and the node: it may be killed and
//! replaced while pods are running.
//!
//! * `client`: the connection to the API server, and what is read and written there
//! * `drivers`: CSI drivers and their volumes
//! * `images`: the node's images, and which pods may use them
//! * `networking`: the cluster's name server, Services, network policies and routes
//! * `node`: the Node object, the machine, evictions under pressure, and shutdown
//! * `pod`: the pods of this node, and a worker for each
//! * `probe`: attempts of probes and hooks
//! * `serve`: the kubelet's endpoints
//! * `context`: the state that all of them share

mod client;
pub mod clock;
mod confined;
pub mod context;
mod drivers;
pub mod fuzzing;
pub mod images;
mod networking;
mod node;
mod pod;
mod probe;
pub mod serve;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use agent_plan::network::node_routes::Routed;
use agent_plan::node::reserve;
use common::task::JoinSet;
use k8s_openapi::api::core::v1::Node;
use network::Ranges;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use client::{certificates, connection, events, requests, reverse};
pub use clock::Clock;
pub use context::{Config, Context, Parts, ServiceProxy, Upkeep};
pub use drivers::directory as kubelet_directory;
pub use node::{lock, log_files, machine};

/// Longest time that a failed start waits until the Node has its status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
const PULLS: usize = 4;
const STARTS: usize = 8;
/// Maximum number of container configurations that wait for their sandboxes.
const DRAFTS: usize = 4;
/// Orders to the pods' workers that may be queued.
const ORDERS: usize = 16;

/// Reason that the agent ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent was stopped.
    #[error("the agent was asked to end")]
    Cancelled,
    /// A directory or file of the agent could not be prepared.
    #[error("prepare {}", path.display())]
    State {
        /// File that the operation failed for.
        path: std::path::PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The runtime failed at the start.
    #[error("the container runtime")]
    Runtime(#[from] runtime::Error),
    /// The pod network failed at the start.
    #[error("the pod network")]
    Network(#[from] network::Error),
    /// The Node's pod CIDR is invalid.
    #[error("the node's pod range")]
    Range(#[from] network::ParseRangesError),
    /// The control plane has allocated other CIDRs than the pods' addresses are from. The caller
    /// restarts the agent, which then ends those pods.
    #[error("the node's pod range is {own} and no longer {used}")]
    RangeLost {
        /// CIDRs in use.
        used: Ranges,
        /// CIDRs of the Node.
        own: Ranges,
    },
    /// Another machine has joined under the node's name while this one was disconnected. The caller
    /// restarts the agent, which then waits until the name is free.
    #[error("another machine is the node now")]
    Replaced,
    /// The watch of pods ended, which it never does.
    #[error("the watch of pods ended")]
    WatchEnded,
    /// The stream of runtime events ended, which it never does.
    #[error("the runtime ended")]
    RuntimeEnded,
    /// The directories of containers' logs could not be made.
    #[error("make the directories of logs")]
    Logs(#[source] std::io::Error),
    /// A server could not be started, or failed.
    #[error("serve")]
    Serve(#[from] serve::Error),
    /// A task panicked.
    #[error("a task ended badly")]
    Task(#[from] tokio::task::JoinError),
}

/// Creates the shared state. The second value sends events and must be run.
pub fn context(config: Config, parts: Parts) -> Result<(Arc<Context>, events::Sender), Error> {
    close(&config.state_directory)?;
    make(&config.state_directory.join("pods"))?;
    config.logs.make().map_err(Error::Logs)?;
    let spare = config.state_directory.join("spare");
    let spares = runtime::Spares::open(&spare, config.spares, &[]);
    let spares = spares.map_err(|source| Error::State { path: spare, source })?;
    let (recorder, sender) = events::channel(parts.client.clone(), &config.node_name, Arc::clone(&parts.clock));
    let machine = machine::Machine::probe(&config.state_directory);
    let capacity = machine.capacity(config.max_pods);
    let (upkeep, state) = (&config.upkeep, &config.state_directory);
    let context = Context {
        allocatable: reserve::allocatable(&capacity, &upkeep.reserved, &upkeep.thresholds),
        machine,
        volumes: volume::Volumes::new(state.join("pods"), config.secrets_in_memory),
        local_path: volume::LocalPath::new(state.join("local-path"), state.join("pods")),
        access: serve::access::reviews::Access::default(),
        pull_records: images::credentials::ImagePullRecords::open(state.join("rights.json"), &parts.images.list()),
        crashes: pod::crashes::Crashes::new(state.join("crashes")),
        spares,
        milestones: pod::milestones::Milestones::default(),
        objects: client::objects::Objects::new(parts.client.clone()),
        tokens: client::tokens::Tokens::default(),
        users: pod::users::UserIds::new(&config.state_directory),
        drivers: drivers::registered::Drivers::default(),
        services: watch::Sender::new(None),
        slices: Mutex::default(),
        names: networking::dns::names::Names::open(config.state_directory.join("names.json")),
        programmed: networking::services::programmed::Programmed::default(),
        admissions: networking::policies::admissions::Admissions::default(),
        pulls: Semaphore::new(PULLS),
        app_armor: node::apparmor::AppArmor::default(),
        se_linux: node::selinux::SeLinux::default(),
        devices: Arc::new(node::devices::Devices::open(
            config.kubelet_directory.join(node::devices::DIRECTORY),
        )),
        starts: Semaphore::new(STARTS),
        drafts: Arc::new(Semaphore::new(DRAFTS)),
        pods: Mutex::new(BTreeMap::new()),
        allocations: pod::allocation::Allocations::default(),
        discounted: Mutex::new(BTreeSet::new()),
        preempted: pod::preempted::Preempted::default(),
        started: pod::started::StartCounts::default(),
        running: watch::Sender::new(BTreeMap::new()),
        pods_changed: Notify::new(),
        shutting_down: watch::Sender::new(false),
        orders: OnceLock::new(),
        measured: node::measure::Memory::default(),
        looks: serve::metrics::requests::Looks::default(),
        asking: serve::metrics::requests::Asking::default(),
        counting: Arc::default(),
        probes: serve::metrics::probes::Probes::default(),
        pull_times: serve::metrics::pulls::PullTimes::default(),
        operations: serve::metrics::own::operations::Operations::default(),
        blocked: watch::Sender::new(None),
        routed: watch::Sender::new(Routed::default()),
        rerouted: Notify::new(),
        stepped: Notify::new(),
        pressures: watch::Sender::new(BTreeSet::new()),
        node: watch::Sender::new(None),
        turned: Mutex::new(tokio::time::Instant::now()),
        renewed: Mutex::new(tokio::time::Instant::now()),
        config,
        parts,
        recorder,
    };
    Ok((Arc::new(context), sender))
}

/// Creates a directory for many others.
fn make(path: &Path) -> Result<(), Error> {
    let made = std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700).create(path);
    made.map_err(|source| Error::State {
        path: path.to_owned(),
        source,
    })?;
    runtime::spread(path);
    Ok(())
}

/// Makes a directory private to the agent's user.
fn close(directory: &Path) -> Result<(), Error> {
    let failed = |source| Error::State {
        path: directory.to_owned(),
        source,
    };
    let mode = match std::fs::metadata(directory) {
        Ok(found) => found.permissions().mode() & 0o7777,
        // The directory is not created here.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if mode & !0o7700 == 0 {
        return Ok(());
    }
    warn!(path = %directory.display(), "was open to others with mode {mode:o}; closed it. Consider replacing what it holds");
    std::fs::set_permissions(directory, Permissions::from_mode(mode & !0o077)).map_err(failed)
}

/// Runs the agent until it is cancelled or an essential task ends. `ready` is called once, when the
/// Node is ready.
pub async fn run(
    context: Arc<Context>,
    events: events::Sender,
    cancel: CancellationToken,
    ready: impl FnOnce(),
) -> Result<Infallible, Error> {
    if context.parts.images.directory().is_some() {
        let own = Arc::clone(&context);
        // The first run takes time proportional to the number of files; only image volumes need it.
        drop(common::task::spawn_blocking(move || {
            own.se_linux.label_images(&own.image_directory());
        }));
    }
    // Before the Node's status, which says what volumes are in use.
    drivers::plugins::start(&context);
    let mut tasks: JoinSet<Result<Infallible, Error>> = JoinSet::new();
    tasks.spawn(async move {
        events.run().await;
        Err(Error::Cancelled)
    });
    let started = async {
        let Some(ranges) = context.config.pod_cidr else {
            return start_with_allocated_range(&context).await;
        };
        let network = async {
            context.parts.network.start(ranges).await?;
            let (named, routes) = tokio::join!(
                networking::dns::start(&context, None),
                networking::routes::begin(&context)
            );
            Ok::<_, Error>((named, routes))
        };
        // The Node is registered while the bridge is created, and Ready when both are done. Names
        // are resolved even without the API server.
        let (named, node) = tokio::join!(network, node::register(&context));
        let (named, routes) = named?;
        let node = node::announce_state(&context, node, node::health(&context).await).await;
        Ok::<_, Error>((node, named, routes))
    };
    let (node, named, routes) = tokio::select! {
        started = started => started?,
        () = cancel.cancelled() => return Err(Error::Cancelled),
    };
    info!(node = context.config.node_name, "ready");
    ready();
    tasks.spawn(node::renew(Arc::clone(&context)));
    tasks.spawn(node::keep(Arc::clone(&context), node));
    tasks.spawn(node::devices::registration::run(Arc::clone(&context.devices)));
    tasks.spawn(networking::services::run(Arc::clone(&context)));
    tasks.spawn(networking::announcing::run(Arc::clone(&context)));
    tasks.spawn(networking::policies::run(Arc::clone(&context)));
    tasks.spawn(networking::dns::run(Arc::clone(&context), named));
    tasks.spawn(networking::routes::run(Arc::clone(&context), routes));
    tasks.spawn(node::qos::run(Arc::clone(&context)));
    tasks.spawn(node::oom::run(Arc::clone(&context)));
    tasks.spawn(drivers::plugins::run(Arc::clone(&context)));
    tasks.spawn(drivers::teardown::run(Arc::clone(&context)));
    tasks.spawn(networking::repair::run(Arc::clone(&context)));
    let (orders, taken) = mpsc::channel(ORDERS);
    // Set here only.
    drop(context.orders.set(orders.clone()));
    tasks.spawn(node::shutdown::run(Arc::clone(&context), orders.clone()));
    tasks.spawn(node::pressure::run(Arc::clone(&context), orders));
    tasks.spawn(pod::run(Arc::clone(&context), taken));
    let ended = tokio::select! {
        ended = tasks.join_next() => ended,
        () = cancel.cancelled() => return Err(Error::Cancelled),
    };
    match ended {
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Ok(never))) => match never {},
        None => Err(Error::Cancelled),
    }
}

/// The Node, the name server, and the routes to other nodes' pods.
type Started = (
    Node,
    Option<networking::dns::Started>,
    Option<networking::routes::Follower>,
);

/// Registers the Node first, then waits for its allocated pod CIDR.
async fn start_with_allocated_range(context: &Arc<Context>) -> Result<Started, Error> {
    let resumed = networking::dns::resume(context).await;
    let mut node = node::register(context).await;
    if node::ranges(&node).is_none() {
        let waiting = "container runtime network not ready: the node has no pod range yet".to_owned();
        node = node::announce_state(context, node, Err(waiting)).await;
    }
    let ranges: Ranges = loop {
        if let Some(ranges) = node::ranges(&node) {
            break ranges.parse()?;
        }
        node = node::wait_for_range(context).await;
    };
    if let Err(error) = serve(context, ranges).await {
        let why = format!("container runtime network not ready: {}", image::chain(&error));
        let told = node::announce_state(context, node, Err(why));
        tokio::time::timeout(STATUS_TIMEOUT, told).await.ok();
        return Err(error);
    }
    let (named, routes) = tokio::join!(
        networking::dns::start(context, resumed),
        networking::routes::begin(context)
    );
    let node = node::announce_state(context, node, node::health(context).await).await;
    Ok((node, named, routes))
}

/// Starts the network. Pods with addresses of CIDRs that another node has now are ended first, and
/// start again with others.
async fn serve(context: &Context, ranges: Ranges) -> Result<(), Error> {
    let network = &context.parts.network;
    match network.start(ranges).await {
        Err(network::Error::RangeInUse(lost)) => {
            warn!(%lost, %ranges, "the node has another pod range; its pods are ended and begin again");
            for attachment in network.attachments().await? {
                context.parts.runtime.remove_sandbox(&attachment.sandbox_id).await?;
                network.detach(&attachment.sandbox_id).await?;
            }
            Ok(network.start(ranges).await?)
        }
        started => Ok(started?),
    }
}
