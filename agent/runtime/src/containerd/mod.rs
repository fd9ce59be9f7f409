//! Containers by containerd: one shim per pod, a fork of this program as the logger of each
//! container, and no process for the sandbox.
//!
//! ```text
//! STATE/sandboxes/ID/              0700
//!   sandbox.json                   record of the sandbox, its containers and their exits
//!   ipc, uts                       namespaces, held by mounts; shm/ is the pod's shared memory
//!   containers/CID/                process.json and logger.json, the logger's socket `attach`
//!   containers/CID/std{in,out,err} pipes
//! ```
//!
//! A container's root file system is a snapshot of containerd's on top of its image's, named by the container.
//!
//! Our containerd namespace may be shared with other clients: only containers and snapshots with
//! our label are touched. Exits of containers arrive as events; after the event stream broke,
//! containerd's list of tasks is compared with the known states.

mod client;
mod container;
mod exits;
mod logger;
mod methods;
mod records;
mod removal;
mod sandbox;
mod streaming;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use containerd_client::services::v1::ListContainersRequest;
use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinSet;

pub use removal::abandoned::end_without_engine;

use client::{CALL, Client, connect, within};
use container::ahead::Ahead;
use container::exec_fifo::ExecFifos;
use container::handlers;
use exits::events;
use records::Records;
use removal::orphans;
use sandbox::{holding, pause};

use crate::cgroup::Cgroups;
use crate::embedded::{Program, Zygotes, check_id};
use crate::error::{finish, io_error};
use crate::files::opened::Opened;
use crate::files::remove_directory;
use crate::files::spares::Spares;
use crate::{Error, Event, Info, Refusal, State};

/// Limit of concurrent execs.
const EXECS: usize = 128;

/// Time for containerd to undo interrupted creations after a crash.
const UNDOING: Duration = Duration::from_mins(1);

/// Paths and addresses of a [`Containerd`] runtime. Several runtimes can share a machine, even a
/// containerd, if their state directories and cgroup roots differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory of all state; created with mode 0700.
    pub state_dir: PathBuf,
    /// Our root in every cgroup hierarchy, relative: `skiff/node-1`.
    pub cgroup_root: String,
    /// containerd's socket.
    pub address: PathBuf,
    /// The containerd namespace.
    pub namespace: String,
    /// Snapshotter of containerd that holds the images and the containers' root file systems.
    pub snapshotter: String,
    /// Program that calls [`crate::helper`]: it runs loggers and init processes of shared PID
    /// namespaces.
    pub program: PathBuf,
    /// Directories of containerd's shims and of programs like runc.
    pub runtimes: Vec<PathBuf>,
}

impl Config {
    /// Uses this program for the helpers.
    pub fn new(
        state_dir: impl Into<PathBuf>,
        cgroup_root: impl Into<String>,
        address: impl Into<PathBuf>,
        namespace: impl Into<String>,
    ) -> Self {
        Self {
            state_dir: state_dir.into(),
            cgroup_root: cgroup_root.into(),
            address: address.into(),
            namespace: namespace.into(),
            snapshotter: "overlayfs".to_owned(),
            program: PathBuf::from("/proc/self/exe"),
            runtimes: handlers::directories(),
        }
    }
}

/// Runtime whose containers are created by containerd. Must be used inside a tokio runtime with
/// I/O.
pub struct Containerd {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    sandboxes: PathBuf,
    spares: Spares,
    cgroups: Cgroups,
    client: Client,
    info: Mutex<Info>,
    /// Read-only view of the program, for processes that containers can see.
    program: Program,
    /// Process that forks the loggers.
    loggers: Zygotes,
    records: Mutex<Records>,
    events: broadcast::Sender<Event>,
    /// `None` once the runtime is dropped: no tasks are spawned any more.
    tasks: Mutex<Option<JoinSet<()>>>,
    execs: Semaphore,
    exec_count: AtomicU64,
    ahead: Mutex<Ahead>,
    /// FIFOs of the tasks that are being started.
    exec_fifos: ExecFifos,
    /// Containers whose loggers are watched.
    heard: Mutex<BTreeSet<String>>,
}

impl Drop for Containerd {
    /// Aborts the listening tasks; containers go on.
    fn drop(&mut self) {
        let tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tasks);
    }
}

/// Runs the hidden subcommands of this module.
pub(crate) fn helper(command: &OsStr) -> Option<ExitCode> {
    if command == logger::COMMAND {
        return Some(logger::main());
    }
    (command == "pause").then(pause::main)
}

impl Containerd {
    /// Opens the state directory, asks containerd for its version and compares its containers with
    /// ours. Removes sandboxes that a crash left incomplete, and containers without a sandbox.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let Opened {
            state_dir,
            sandboxes,
            spares,
            cgroups,
        } = Opened::at(&config.state_dir, &config.cgroup_root, &[])?;
        let client = connect(&config.address, &config.namespace)?;
        let info = Mutex::new(client::info(&client).await?);
        let program = Program::seal(&config.program, &state_dir);
        let (records, unfinished) = Records::open(&sandboxes).map_err(io_error("read", &sandboxes))?;
        let shared = Shared {
            sandboxes,
            spares,
            cgroups,
            client,
            info,
            program,
            loggers: Zygotes::default(),
            records: Mutex::new(records),
            events: broadcast::channel(1024).0,
            tasks: Mutex::new(Some(JoinSet::new())),
            execs: Semaphore::new(EXECS),
            exec_count: AtomicU64::new(0),
            ahead: Mutex::default(),
            exec_fifos: ExecFifos::default(),
            heard: Mutex::default(),
            config: Config { state_dir, ..config },
        };
        let this = Self {
            shared: Arc::new(shared),
        };
        this.shared.take_over(unfinished).await?;
        Ok(this)
    }

    /// Removes all sandboxes, our root in the cgroup hierarchies and the state directory's content.
    /// Continues after failures.
    pub async fn cleanup(&self) -> Result<(), Error> {
        let mut failures = Vec::new();
        for id in self.shared.known() {
            if let Err(error) = self.shared.remove(&id).await {
                failures.push(error.to_string());
            }
        }
        failures.extend(self.shared.remove_strays().await.err().map(|error| error.to_string()));
        failures.extend(
            self.shared
                .remove_stray_roots()
                .await
                .err()
                .map(|error| error.to_string()),
        );
        self.shared.end_orphans().await?;
        // Nothing of ours is created from here on.
        self.shared.loggers.end().await;
        let aborted = self.shared.remove_aborted(Duration::ZERO).await;
        failures.extend(aborted.err().map(|error| error.to_string()));
        let idle = self.shared.blocking("end shims without containers", |shared| {
            orphans::end_idle(&shared.config.address, &shared.config.namespace);
        });
        failures.extend(idle.await.err().map(|error| error.to_string()));
        let root = PathBuf::from(&self.shared.config.cgroup_root);
        failures.extend(self.shared.cgroups.remove(&root));
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.shared.cgroups.prune(parent);
        }
        for name in ["sandboxes", "empty"] {
            remove_directory(&self.shared.config.state_dir.join(name), &mut failures);
        }
        finish(failures)
    }
}

impl Shared {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> Vec<String> {
        let records = self.records();
        records.iter().map(|entry| entry.record.sandbox.id.clone()).collect()
    }

    /// Running containers, with their sandboxes and the PIDs of their init processes.
    fn running(&self) -> Vec<(String, String, i32)> {
        let mut running = Vec::new();
        for entry in self.records().iter() {
            for container in entry.record.containers() {
                if let State::Running { pid, .. } = container.state {
                    running.push((entry.record.sandbox.id.clone(), container.id.clone(), pid));
                }
            }
        }
        running
    }

    fn directory(&self, sandbox: &str) -> PathBuf {
        self.sandboxes.join(sandbox)
    }

    fn container_directory(&self, sandbox: &str, container: &str) -> PathBuf {
        self.directory(sandbox).join(records::CONTAINERS).join(container)
    }

    /// Cgroup of a sandbox.
    fn group(&self, sandbox: &str) -> PathBuf {
        self.cgroups.locate(Path::new(&self.config.cgroup_root), sandbox)
    }

    /// Value of the label that marks our containers.
    fn owner(&self) -> String {
        self.config.state_dir.display().to_string()
    }

    /// Spawns work that must be finished even if its caller goes away.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tasks) = tasks.as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(work);
        }
    }

    /// Runs work that blocks briefly on a thread of its own.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        doing: &'static str,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.map_err(|error| Refusal::failed(doing, &error).into())
    }

    /// Adopts the sandboxes of an earlier agent, removes incomplete ones, and starts listening.
    async fn take_over(self: &Arc<Self>, unfinished: Vec<String>) -> Result<(), Error> {
        // Creations of an earlier agent are cut off: their shims would block the next containers of
        // their pods.
        self.end_orphans().await?;
        self.release_execs();
        self.close_inputs();
        for id in unfinished {
            if check_id("sandbox id", &id).is_ok() {
                tracing::info!(sandbox = id, "removing a sandbox whose creation was not finished");
                // A failure must not keep the agent from the other sandboxes.
                if let Err(error) = self.remove(&id).await {
                    tracing::warn!(sandbox = id, %error, "what is left of a sandbox stays");
                }
            }
        }
        {
            let mut records = self.records();
            for id in records
                .iter()
                .map(|entry| entry.record.sandbox.id.clone())
                .collect::<Vec<_>>()
            {
                let directory = self.directory(&id);
                let Some(entry) = records.get_mut(&id) else { continue };
                let pause_gone = entry.record.pause.as_ref().is_some_and(|pause| pause.open().is_none());
                entry.record.sandbox.lost = pause_gone || !holding::is_whole(&directory, &entry.record.spec);
            }
        }
        self.remove_strays().await?;
        self.remove_stray_roots().await?;
        self.remove_aborted(orphans::CREATION).await?;
        events::listen(self).await?;
        self.end_all_unheard().await;
        for id in self.known() {
            self.watch_pause(&id);
        }
        for (sandbox, id, pid) in self.running() {
            self.watch_first(&id, pid);
            self.watch_logger((&sandbox, &id), pid);
        }
        Ok(())
    }

    /// Kills shims that a crash left without a record in containerd.
    async fn end_orphans(self: &Arc<Self>) -> Result<(), Error> {
        self.blocking("end shims that serve no task", |shared| {
            orphans::end(&shared.config.address, &shared.config.namespace);
        })
        .await
    }

    /// Removes state of runc that is this old and whose container does not exist.
    async fn remove_aborted(self: &Arc<Self>, age: Duration) -> Result<(), Error> {
        let doing = "remove what runc has begun";
        let aborted = self.blocking(doing, move |shared| orphans::aborted(&shared.config.namespace, age));
        let mut aborted = aborted.await?;
        if aborted.is_empty() {
            return Ok(());
        }
        // List the containers afterwards: their creator registers them before runc's state exists.
        let request = self.client.request(ListContainersRequest::default());
        let listed = within(CALL, "list containers", self.client.containers().list(request)).await?;
        let known: BTreeSet<String> = listed.containers.into_iter().map(|stored| stored.id).collect();
        aborted.retain(|(id, _)| !known.contains(id) && self.records().owner(id).is_none());
        self.blocking(doing, move |_| orphans::remove(&aborted)).await
    }

    /// Ends orphaned shims and removes incomplete state of runc once containerd has undone
    /// interrupted creations.
    fn end_orphans_later(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.spawn(async move {
            tokio::time::sleep(UNDOING).await;
            let Some(shared) = shared.upgrade() else { return };
            // It logs its own errors.
            drop(shared.end_orphans().await);
            if let Err(error) = shared.remove_aborted(orphans::CREATION).await {
                tracing::warn!(%error, "what runc has begun stays");
            }
        });
    }
}
