//! `skiff-controlplane`: the API server with its store, the controllers and the scheduler.

use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgMatches, Args as _, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use controlplane::backup::{Backup, Restore, backup, restore};
use controlplane::config::Config;
use controlplane::credentials::{Issue, IssueNode, issue, issue_node};
use controlplane::envtest::etcd::Etcd;
use controlplane::envtest::{Name, api_server};
use controlplane::moving::{self, Move};
use controlplane::sql::{Query, query};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Several threads allocate and free for each request: with glibc's heaps that is a third of the processor time of a
/// binding, or several half empty heaps.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options of the allocator: one arena, from which each thread has a cache, and whose free pages go back within a second, by a
/// thread of its own.
#[expect(unsafe_code, reason = "jemalloc reads its options from a symbol")]
// SAFETY: nothing else has that name, and its first word is a pointer to a text with an end, as in C.
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 70] = b"narenas:1,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// A small Kubernetes control plane.
#[derive(Debug, Parser)]
#[command(name = "skiff-controlplane", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    config: Config,
    /// What to log: a level, or directives such as `info,store=debug`
    #[arg(long, global = true, default_value = "info", env = "SKIFF_LOG")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the control plane (the default)
    Run(Box<Config>),
    /// Write a kubeconfig for a user
    Issue(Issue),
    /// Write the credentials of a node's agent
    IssueNode(IssueNode),
    /// Write the whole cluster into one file, while it runs
    Backup(Backup),
    /// Make a cluster's state from such a file, where there is none
    Restore(Restore),
    /// Read the cluster's objects, their past and the audit log by a query in SQL
    Sql(Query),
    /// Move the objects to an etcd, or back, while no control plane runs
    Move(Move),
}

fn flags(matches: &ArgMatches) -> Vec<(String, String)> {
    common::flags::set(&Config::augment_args(clap::Command::new("run")), matches)
}

fn main() -> anyhow::Result<ExitCode> {
    match std::env::args_os().next().as_deref().and_then(Name::of) {
        Some(Name::ApiServer) => {
            let started = api_server::parse(std::env::args_os().skip(1));
            let _log = start_log(started.log)?;
            return Ok(ended(started.config().and_then(run)));
        }
        Some(Name::Etcd) => {
            let etcd = Etcd::parse();
            let _log = start_log("info")?;
            return Ok(ended(run_until_told(etcd.run())));
        }
        None => {}
    }
    let matches = Arguments::command().get_matches();
    let mut arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match &mut arguments.command {
        None => arguments.config.flags = flags(&matches),
        Some(Command::Run(config)) => config.flags = matches.subcommand_matches("run").map(flags).unwrap_or_default(),
        Some(
            Command::Issue(_)
            | Command::IssueNode(_)
            | Command::Backup(_)
            | Command::Restore(_)
            | Command::Sql(_)
            | Command::Move(_),
        ) => {}
    }
    let _log = start_log(&arguments.log)?;
    let outcome = match arguments.command {
        None => run(arguments.config),
        Some(Command::Run(config)) => run(*config),
        Some(Command::Issue(options)) => issue(&options),
        Some(Command::IssueNode(options)) => issue_node(&options),
        Some(Command::Backup(options)) => backup(&options),
        Some(Command::Restore(options)) => restore(&options),
        Some(Command::Sql(options)) => query(&options),
        Some(Command::Move(options)) => moving::run(&options),
    };
    Ok(ended(outcome))
}

fn ended(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a future until it ends or a signal arrives, on this thread.
fn run_until_told(running: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("start the runtime")?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        tokio::select! {
            outcome = running => outcome,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    })
}

fn start_log(directives: &str) -> anyhow::Result<common::log::Guard> {
    // Raises kube_client's level: it would log a body that it cannot parse whole, Secrets included.
    // Its callers report the error.
    let directives = format!("kube_client=error,{directives}");
    let filter = EnvFilter::try_new(&directives).with_context(|| format!("read --log {directives}"))?;
    common::log::start(filter).context("start the log")
}

fn run(config: Config) -> anyhow::Result<()> {
    common::files::allow_open_files();
    // Requests are short and the store has its own threads: two workers are enough, and cost little when idle.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .thread_name("skiff")
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let cancel = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut control_plane = std::pin::pin!(controlplane::run(config, cancel.clone()));
        let outcome = tokio::select! {
            outcome = control_plane.as_mut() => outcome,
            never = common::memory::give_back(false) => match never {},
            never = common::notify::watchdog() => match never {},
            _ = terminate.recv() => stop(&cancel, control_plane.as_mut()).await,
            _ = interrupt.recv() => stop(&cancel, control_plane.as_mut()).await,
        };
        Ok(outcome?)
    })
}

async fn stop<F: Future>(cancel: &CancellationToken, control_plane: F) -> F::Output {
    info!("stopping");
    cancel.cancel();
    control_plane.await
}
