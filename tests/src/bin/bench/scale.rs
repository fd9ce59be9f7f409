//! Hollow nodes: the agent's own code over a simulated runtime and network, all of them in one process beside the control
//! plane, with the real API between.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use agent::connection::{self, Servers};
use agent::{Parts, clock, images, requests};
use anyhow::{Context as _, bail};
use http::Request;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use server::authn::pki::{Pki, Profile, kubeconfig, node_user};
use tests::http::{Events, Target};
use tests::process;
use tests::server::Server;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::figures::{Table, milliseconds, now, rate};
use crate::lists::{by_many, create};
use crate::memory;
use crate::scheduling::until;

/// First argument of the process of the nodes.
pub(crate) const HOLLOW: &str = "hollow";
const LISTEN: &str = "127.0.0.1:7443";
/// Pod addresses of a thousand nodes.
const CLUSTER_CIDR: &str = "--cluster-cidr=10.128.0.0/14";
const SIZES: [usize; 3] = [10, 100, 1_000];
const PODS_A_NODE: usize = 10;
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/hollow/pods";
/// Longest time until all nodes are Ready.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Time after which the work that the pods' start leaves behind, its events above all, is done.
const UNTIL_REST: Duration = Duration::from_secs(30);

/// Measures a fresh control plane with each number of nodes.
pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    // A node has several connections, each of which is a file of both processes.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    for nodes in SIZES {
        let server = Server::start_with(None, LISTEN, &[CLUSTER_CIDR])?;
        let target = server.ready().await?;
        let mut hollow = Command::new(std::env::current_exe()?)
            .args([HOLLOW, &nodes.to_string()])
            .arg(server.state())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let told = hollow.stdout.take().context("the nodes' output")?;
        let pids = (
            server.pid()?,
            i32::try_from(hollow.id().context("the nodes' process")?)?,
        );
        let figure = tokio::select! {
            ended = hollow.wait() => bail!("the nodes ended: {}", ended?),
            figure = grow(&target, told, pids, nodes) => figure?,
        };
        table.row(format!("{nodes} hollow nodes with {PODS_A_NODE} pods each"), figure);
        hollow.kill().await?;
    }
    Ok(())
}

/// Lets the nodes start and fills them with pods; returns what that takes, and what is left of it at rest.
async fn grow(
    target: &Target,
    told: ChildStdout,
    (server, hollow): (i32, i32),
    nodes: usize,
) -> anyhow::Result<String> {
    let pods = nodes * PODS_A_NODE;
    let namespace = json!({ "metadata": { "name": "hollow" } });
    create(&mut target.connect().await?, "/api/v1/namespaces", &namespace).await?;
    let mut watching = target.connect().await?;
    let events = watching
        .events(&format!("{NODES}?watch=true&timeoutSeconds=600"))
        .await?;
    let start = BufReader::new(told).lines().next_line().await?;
    start.context("the nodes do not start")?;
    let begun = now();
    timeout(TIMEOUT, all_ready(events, nodes))
        .await
        .context("not all nodes are Ready")??;
    let ready = begun.elapsed();
    let before = [process::cpu_ticks(server)?, process::cpu_ticks(hollow)?];
    let created = by_many(target, PODS, 0..pods, pod).await?;
    let begun = now();
    let mut connection = target.connect().await?;
    let unbound = format!("{PODS}?fieldSelector=spec.nodeName%3D&limit=1");
    until(&mut connection, &unbound, <[Value]>::is_empty).await?;
    let bound = created + begun.elapsed();
    let not_running = format!("{PODS}?fieldSelector=status.phase%21%3DRunning&limit=1");
    until(&mut connection, &not_running, <[Value]>::is_empty).await?;
    let running = created + begun.elapsed();
    let mut spent = Vec::new();
    for (pid, before) in [server, hollow].into_iter().zip(before) {
        let ticks = usize::try_from(process::cpu_ticks(pid)?.saturating_sub(before))?;
        spent.push(format!("{} µs", ticks * 10_000 / pods));
    }
    let new = memory::watch(&[server])?.concat();
    sleep(UNTIL_REST).await;
    let rested = memory::watch(&[server])?.concat();
    let files = std::fs::read_dir(format!("/proc/{server}/fd"))?.count();
    let [ready, all] = [ready, running].map(milliseconds);
    let [created, bound, run] = [created, bound, running].map(|took| rate(pods, took));
    let spent = spent.join(" and ");
    Ok(format!(
        "all Ready {ready}; pods created {created}, bound {bound}, running {run} (all {all}); CPU a pod of the control plane and \
         of the nodes {spent}; control plane, all running: {new}; at rest, with leases: {rested}, {files} open files"
    ))
}

/// Follows the nodes until so many are Ready and take pods.
async fn all_ready(mut events: Events, nodes: usize) -> anyhow::Result<()> {
    let mut ready = BTreeSet::new();
    while ready.len() < nodes {
        let event = events.next().await?.context("the watch ended")?;
        let node = event.get("object").context("an object")?;
        let name = node.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.with_context(|| format!("a name in {event}"))?;
        if is_ready(node) {
            ready.insert(name.to_owned());
        } else {
            ready.remove(name);
        }
    }
    Ok(())
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    node.pointer("/spec/taints").is_none() && conditions.into_iter().flatten().any(is_ready)
}

fn pod(number: usize) -> Value {
    json!({
        "metadata": { "name": format!("hollow-{number}"), "labels": { "app": "hollow" } },
        "spec": {
            "containers": [{
                "name": "web", "image": "nginx:1", "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    })
}

/// Runs the process of the nodes: their number and the control plane's state directory are its arguments. It ends with the
/// first of them, or with its parent.
pub(crate) fn hollow(mut words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let nodes: usize = words.next().context("a number of nodes")?.parse()?;
    let state = PathBuf::from(words.next().context("a state directory")?);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error"));
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    log.with_writer(std::io::stderr).init();
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    executor.block_on(run(nodes, &state))
}

async fn run(nodes: usize, state: &Path) -> anyhow::Result<()> {
    let clock = clock::wall();
    let authority = Pki::open(&state.join("controlplane/pki"), clock())?;
    let server = format!("https://{LISTEN}");
    let mut credentials = Vec::new();
    for number in 0..nodes {
        let name = format!("hollow-{number}");
        let user = node_user(&name);
        let identity = authority.issue(&Profile::client(&user, &["system:nodes"]), clock())?;
        credentials.push((name, kubeconfig(&server, authority.authority(), &user, &identity)));
    }
    // Certificates are not what is measured.
    writeln!(std::io::stdout(), "the nodes start")?;
    let mut agents = JoinSet::new();
    for (name, kubeconfig) in credentials {
        let parts = Parts {
            client: client(&kubeconfig).await?,
            runtime: Arc::new(runtime::Sim::new()),
            network: Arc::new(network::Sim::new()),
            images: Arc::new(images::Sim),
            clock: Arc::clone(&clock),
        };
        let directory = state.join("hollow").join(&name);
        agents.spawn(tests::cluster::agent::run(
            parts,
            name,
            directory,
            CancellationToken::new(),
        ));
    }
    let error = agents.join_next().await.context("there is no node")??;
    Err(error).context("a node ended")
}

/// A client as that of the agent's program, which has the same limits.
async fn client(text: &str) -> anyhow::Result<kube::Client> {
    let read = Kubeconfig::from_yaml(text)?;
    let mut configuration = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    configuration.proxy_url = None;
    configuration.read_timeout = Some(Duration::from_mins(6));
    configuration.connect_timeout = Some(Duration::from_secs(5));
    let inner = connection::open(configuration, &Servers::new(&[]))?;
    let service = tower::service_fn(move |request: Request<Body>| requests::send(inner.clone(), request));
    Ok(kube::Client::new(service, "default"))
}
