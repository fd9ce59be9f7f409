//! `skiff-agent`: the node agent.

mod addresses;
mod bootstrap;
mod cleanup;
mod command;
mod patience;
mod proxying;
mod renewal;
mod upkeep;

use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agent::lock::Lock;
use anyhow::Context as _;
use futures::future::LocalBoxFuture;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use addresses::Choice;
use command::{Arguments, Command};
use renewal::Credentials;

/// musl's allocator has one lock for all threads. With glibc's, the agent is smaller at rest.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options of the allocator, as the control plane has them, but for its thread: the helpers have one thread each, and fork.
#[cfg(target_env = "musl")]
#[expect(unsafe_code, reason = "jemalloc reads its options from a symbol")]
// SAFETY: nothing else has that name, and its first word is a pointer to a text with an end, as in C.
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 47] = b"narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// The longest path of a socket, in bytes: `sun_path` of `unix(7)` without the zero at its end.
const LONGEST_SOCKET: usize = 107;

/// Default log levels, without `RUST_LOG`. The name server's library logs every query.
const LOG_FILTER: &str =
    "info,kube_client=error,kube_runtime=error,hickory_server=warn,hickory_net=error,hickory_resolver=error";

fn main() -> anyhow::Result<ExitCode> {
    // Read first: once the file is replaced, the kernel reports its path as deleted.
    let own = std::env::current_exe();
    // The mode of files that containers see must not depend on the caller's umask. Private files
    // are created with an explicit mode.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    // The helpers are single-threaded, so they run before any thread starts.
    if let Some(code) = runtime::helper(std::env::args_os().skip(1)) {
        return Ok(code);
    }
    if let Some(code) = network::plugin(std::env::args_os()) {
        return Ok(code);
    }
    // This thread prepares a pod while another one creates its network: with one heap they would
    // contend.
    common::memory::share(2);
    let arguments = command::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let log = common::log::start(filter).context("start the log")?;
    common::files::allow_open_files();
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .build();
    let outcome = executor.context("start the executor").and_then(|executor| {
        // Boxed: all of the agent would be compiled for each of tokio's executors.
        let command: LocalBoxFuture<'_, anyhow::Result<()>> = match arguments.command() {
            Command::Run => Box::pin(run(&arguments)),
            Command::Cleanup => Box::pin(cleanup::run(&arguments)),
        };
        let outcome = executor.block_on(command);
        executor.shutdown_background();
        outcome
    });
    let Err(error) = outcome else {
        return Ok(ExitCode::SUCCESS);
    };
    let is_over = matches!(
        error.downcast_ref(),
        Some(agent::Error::RangeLost { .. } | agent::Error::Replaced)
    );
    if is_over || error.is::<addresses::Moved>() {
        tracing::warn!(error = format!("{error:#}"), "the agent starts again");
        drop(log);
        // Keeps the PID, for the service manager. Pods keep running, as when an agent is replaced.
        // An upgrade may have replaced the program at that path.
        let own = own.context("find the own executable")?;
        let failed = std::process::Command::new(own).args(std::env::args_os().skip(1)).exec();
        return Err(failed).context("start again");
    }
    tracing::error!(error = format!("{error:#}"), "the agent ends");
    Ok(ExitCode::FAILURE)
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let socket = socket(arguments)?;
    let _lock = Lock::take(&arguments.state_dir, "run")?;
    // Same as the kubelet's: under memory pressure, pods are killed first.
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-999") {
        tracing::warn!(%error, "the agent may be killed when memory is short");
    }
    let cancel = CancellationToken::new();
    let listener = agent::serve::listen(arguments.listen)
        .await
        .with_context(|| format!("listen on {}", arguments.listen))?;
    let own = listener.local_addr().context("the own address")?;
    let port = own.port();
    let images = patience::open(arguments, || arguments.images()).await?;
    let servers = arguments.servers();
    bootstrap::run(arguments, &servers).await?;
    let (credentials, client) = Credentials::open(arguments.kubeconfig(), servers, arguments.tls_files()).await?;
    let parts = patience::open(arguments, || arguments.parts(client.clone(), &images)).await?;
    let (addresses, choice) = addresses(arguments).await?;
    let config = arguments.config(port, addresses.clone())?;
    remove_unwanted(arguments, &config);
    let (context, events) = agent::context(config, parts)?;
    let mut tasks = common::task::JoinSet::new();
    let (own_images, shared, own_cancel) = (images.clone(), Arc::clone(&context), cancel.clone());
    tasks.spawn(async move {
        agent::serve::socket(&socket, own_images, shared, own_cancel)
            .await
            .context("serve the socket")
    });
    if let Some(directory) = arguments.image_dir.clone() {
        tasks.spawn(async move {
            let imported = images.import_directory(&directory).await.context("import images")?;
            tracing::info!(images = imported.len(), "imported");
            std::future::pending().await
        });
    }
    let (files, shared, own_cancel) = (arguments.tls_files(), Arc::clone(&context), cancel.clone());
    tasks.spawn(async move {
        agent::serve::https(listener, &files, shared, own_cancel)
            .await
            .context("serve")
    });
    let own_cancel = cancel.clone();
    let shared = Arc::clone(&context);
    let ready = open_to_servers(arguments, own, &mut tasks);
    tasks.spawn(async move {
        match Box::pin(agent::run(context, events, own_cancel, ready)).await {
            Ok(never) => match never {},
            Err(agent::Error::Cancelled) => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    tasks.spawn(async move { match credentials.run().await {} });
    tasks.spawn(async move { Err(addresses::lost(choice, addresses).await.into()) });
    tasks.spawn(async { match common::memory::give_back(cfg!(target_env = "gnu")).await {} });
    tasks.spawn(async { match common::notify::watchdog().await {} });
    tasks.spawn(async move {
        signalled().await.context("wait for signals")?;
        shared.end_with_machine().await;
        shared.tell_rest().await;
        Ok(())
    });
    let ended = tasks.join_next().await;
    cancel.cancel();
    match ended {
        Some(ended) => ended.context("a task")?,
        None => Ok(()),
    }
}

/// Opens connections to the servers that cannot open one to the agent, which listens at `own`, once the returned function tells
/// that it is the node: a machine that is refused gets none of its requests.
fn open_to_servers(
    arguments: &Arguments,
    own: SocketAddr,
    tasks: &mut common::task::JoinSet<anyhow::Result<()>>,
) -> impl FnOnce() + use<> {
    let is_ready = CancellationToken::new();
    for server in arguments.each_server() {
        let (kubeconfig, is_ready) = (arguments.kubeconfig().to_owned(), is_ready.clone());
        tasks.spawn(async move {
            is_ready.cancelled().await;
            match agent::reverse::run(|| renewal::connect_switching(&kubeconfig, &server), own).await {}
        });
    }
    move || {
        common::notify::ready();
        is_ready.cancel();
    }
}

/// Returns the node's addresses, and how they were chosen if none are given.
async fn addresses(arguments: &Arguments) -> anyhow::Result<(Vec<IpAddr>, Option<Choice>)> {
    if let given @ [_, ..] = arguments.addresses() {
        return Ok((given.to_vec(), None));
    }
    let choice = arguments.choice()?;
    Ok((choice.made().await, Some(choice)))
}

/// Returns the path of the agent's socket, unless it is too long for the kernel.
fn socket(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let socket = arguments.state_dir.join("agent.sock");
    let (length, longest) = (
        arguments.state_dir.as_os_str().len(),
        LONGEST_SOCKET - "/agent.sock".len(),
    );
    anyhow::ensure!(
        socket.as_os_str().len() <= LONGEST_SOCKET,
        "--state-dir has {length} bytes and may have {longest}: the kernel takes no longer path of a socket in it"
    );
    Ok(socket)
}

/// Removes network policy tables of an earlier agent, if this one does not enforce policies.
fn remove_unwanted(arguments: &Arguments, config: &agent::Config) {
    if config.network_policies.is_none()
        && let Err(error) = arguments.remove_network_policies()
    {
        tracing::warn!(
            error = image::chain(&error),
            "pods may be held to NetworkPolicies of an earlier agent"
        );
    }
}

/// Returns on SIGTERM or SIGINT. Containers keep running: only `cleanup` and a shutdown of the
/// machine end them.
async fn signalled() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to end; the pods go on");
    Ok(())
}
