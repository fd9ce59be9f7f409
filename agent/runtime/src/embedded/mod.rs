//! Containers by libcontainer, with one supervisor process per pod.
//!
//! ```text
//! STATE/sandboxes/ID/            0700
//!   sandbox.json                 record of the sandbox, with its supervisor's PID
//!   supervisor.sock              0600; one frame protocol, see `protocol`
//!   containers/CID/record.json   record of the container, its state and exit
//!   containers/CID/{config.json,rootfs/,upper/,work/}
//! ```
//!
//! The state on disk and in the supervisors is authoritative; this process keeps only connections,
//! so that another agent may take over.

mod ahead;
mod calls;
mod connection;
mod orphans;
mod program;
mod removal;
mod run;
mod streams;
mod supervise;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::task::JoinSet;

pub(crate) use calls::{arrange, change, described};
use connection::Connection;
pub(crate) use program::Program;
pub(crate) use supervise::{Zygote, Zygotes};

use crate::cgroup::Cgroups;
use crate::clock::now;
use crate::error::io_error;
use crate::files::opened::Opened;
use crate::files::record;
use crate::files::spares::Spares;
use crate::protocol::{Answer, Call};
use crate::supervisor::{CONTAINERS, FOLDERS, RECORD, SANDBOX, SandboxRecord};
use crate::{Container, Error, Event, Exit, Refusal, Runtime, Sandbox, State};

/// Time after which a supervisor that does not answer counts as delayed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Paths of an [`Embedded`] runtime. Several runtimes can share a machine if all of these differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory of all state, with the containers' writable layers; created with mode 0700.
    pub state_dir: PathBuf,
    /// Our root in every cgroup hierarchy, relative: `skiff/node-1`.
    pub cgroup_root: String,
    /// Program that runs supervisors.
    pub program: PathBuf,
    /// Arguments with which the program calls [`crate::supervisor::main`].
    pub arguments: Vec<OsString>,
}

impl Config {
    /// Uses this program with the argument `supervisor`.
    pub fn new(state_dir: impl Into<PathBuf>, cgroup_root: impl Into<String>) -> Self {
        Self {
            state_dir: state_dir.into(),
            cgroup_root: cgroup_root.into(),
            program: PathBuf::from("/proc/self/exe"),
            arguments: vec![OsString::from("supervisor")],
        }
    }
}

/// Runtime that creates containers with libcontainer. Must be used inside a tokio runtime with I/O.
pub struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    sandboxes: PathBuf,
    spares: Spares,
    cgroups: Cgroups,
    program: Program,
    zygote: Zygotes,
    connections: Mutex<BTreeMap<String, Arc<Connection>>>,
    announced: Mutex<ahead::Announced>,
    /// Sandboxes without processes that are about to be removed. IDs are not reused.
    ended: Mutex<BTreeSet<String>>,
    events: broadcast::Sender<Event>,
    tasks: Mutex<JoinSet<()>>,
}

impl Drop for Embedded {
    /// Aborts the connections' tasks; supervisors and containers go on.
    fn drop(&mut self) {
        self.shared
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .abort_all();
    }
}

fn unexpected() -> Error {
    Refusal::Failed {
        doing: "read the supervisor's answer".to_owned(),
        cause: "it answers something else".to_owned(),
    }
    .into()
}

/// Checks an ID, which becomes a name of directories and cgroups.
pub(crate) fn check_id(what: &'static str, id: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=64).contains(&id.len()) && !id.starts_with('.') && id.bytes().all(plain) && id != crate::supervisor::GROUP {
        return Ok(());
    }
    Err(Error::Invalid {
        what,
        value: id.to_owned(),
    })
}

impl Embedded {
    /// Opens the state directory and connects to the running supervisors. Removes sandboxes that a
    /// crash left incomplete.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let Opened {
            state_dir,
            sandboxes,
            spares,
            cgroups,
        } = Opened::at(&config.state_dir, &config.cgroup_root, &FOLDERS)?;
        let program = Program::seal(&config.program, &state_dir);
        let zygote = Zygotes::default();
        let (connections, announced, ended) = (Mutex::default(), Mutex::default(), Mutex::default());
        let tasks = Mutex::new(JoinSet::new());
        let events = broadcast::channel(1024).0;
        let shared = Shared {
            config,
            sandboxes,
            spares,
            cgroups,
            program,
            zygote,
            connections,
            announced,
            ended,
            events,
            tasks,
        };
        let embedded = Self {
            shared: Arc::new(shared),
        };
        embedded.take_over().await?;
        let zygote = embedded.shared.make_zygote();
        let zygote = zygote.map_err(io_error("start", &embedded.shared.config.program))?;
        embedded.shared.zygote.set(zygote);
        Ok(embedded)
    }

    /// Adopts the complete sandboxes of an earlier agent, and removes the rest.
    async fn take_over(&self) -> Result<(), Error> {
        let known = self.shared.known()?;
        let (mut supervisors, mut lost) = (BTreeSet::new(), Vec::new());
        for id in &known {
            match self.shared.reconnect(id).await {
                Ok(pid) => drop(supervisors.insert(pid)),
                Err(error) => {
                    tracing::warn!(sandbox = id, %error, "sandbox has no supervisor");
                    lost.push(id);
                }
            }
        }
        // Before any removal: a supervisor that is still setting up would create files again.
        if let Err(error) = self.shared.end_strays(supervisors).await {
            tracing::warn!(%error, "supervisors of an earlier agent live on");
        }
        for id in lost {
            // Remove a sandbox that has no record. A failure must not keep the agent from the other
            // sandboxes.
            let told = self.shared.read_lost(id).is_ok_and(|found| found.is_some());
            let ended = if told {
                self.shared.kill(id).await
            } else {
                self.remove_sandbox(id).await
            };
            if let Err(error) = ended {
                tracing::warn!(sandbox = id, %error, "what is left of a sandbox stays");
            }
        }
        let groups = known.into_iter().chain([crate::supervisor::GROUP.to_owned()]);
        for failure in self.shared.collect_groups(groups.collect()).await {
            tracing::warn!(failure, "orphans of an earlier agent");
        }
        Ok(())
    }

    /// Removes all sandboxes, our root in the cgroup hierarchies and the state directory's content.
    /// Continues after failures.
    pub async fn cleanup(&self) -> Result<(), Error> {
        let mut failures = Vec::new();
        for id in self.shared.known()? {
            if let Err(error) = self.remove_sandbox(&id).await {
                failures.push(error.to_string());
            }
        }
        self.shared.zygote.end().await;
        let root = PathBuf::from(&self.shared.config.cgroup_root);
        // Also supervisors whose directories are gone.
        failures.extend(self.shared.collect_groups(BTreeSet::new()).await);
        failures.extend(self.shared.cgroups.remove(&root));
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.shared.cgroups.prune(parent);
        }
        for name in ["sandboxes", "empty"] {
            let path = self.shared.sandboxes.with_file_name(name);
            if let Err(error) = trees::remove(&path) {
                failures.push(format!("remove {}: {error}", path.display()));
            }
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(Error::Incomplete(failures))
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, id: &str) -> PathBuf {
        self.sandboxes.join(id)
    }

    /// Cgroup of a sandbox.
    fn group(&self, id: &str) -> PathBuf {
        self.cgroups.locate(Path::new(&self.config.cgroup_root), id)
    }

    fn connection(&self, id: &str) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.connections().get(id) {
            return Ok(Arc::clone(connection));
        }
        check_id("sandbox id", id)?;
        let missing = !self.directory(id).exists();
        Err(if missing {
            Error::SandboxNotFound(id.to_owned())
        } else {
            Error::SandboxLost(id.to_owned())
        })
    }

    fn make_zygote(&self) -> io::Result<Zygote> {
        let place = (&self.cgroups, self.config.cgroup_root.as_str());
        Zygote::start(&self.program, &self.config.arguments, place)
    }

    async fn call(&self, sandbox: &str, call: Call, body: &[u8]) -> Result<(Answer, Vec<u8>), Error> {
        self.connection(sandbox)?.call(call, body).await
    }

    /// IDs of the sandboxes on disk.
    fn known(&self) -> Result<Vec<String>, Error> {
        let mut all = Vec::new();
        let entries = match fs::read_dir(&self.sandboxes) {
            // Cleaned up already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            entries => entries.map_err(io_error("list", &self.sandboxes))?,
        };
        for entry in entries {
            let entry = entry.map_err(io_error("list", &self.sandboxes))?;
            all.extend(entry.file_name().to_str().map(str::to_owned));
        }
        all.sort();
        Ok(all)
    }

    async fn inspect(&self, id: &str) -> Result<Option<Sandbox>, Error> {
        let asked = tokio::time::timeout(TIMEOUT, self.call(id, Call::Inspect, &[])).await;
        match asked {
            Ok(Ok((Answer::Sandbox(sandbox), _))) => Ok(Some(sandbox)),
            Ok(Ok(_)) => Err(unexpected()),
            Ok(Err(Error::SandboxLost(_))) => self.read_lost(id),
            Ok(Err(Error::SandboxNotFound(_))) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_elapsed) => {
                // It may only be delayed. It reports exits of that time when it continues.
                tracing::warn!(
                    sandbox = id,
                    "its supervisor does not answer: what it wrote down last counts"
                );
                self.read(id)
            }
        }
    }

    /// Returns the record of a sandbox without a supervisor: none of its processes run.
    fn read_lost(&self, id: &str) -> Result<Option<Sandbox>, Error> {
        let lost = |sandbox: Sandbox| Sandbox {
            lost: true,
            containers: sandbox.containers.into_iter().map(ended).collect(),
            ..sandbox
        };
        Ok(self.read(id)?.map(lost))
    }

    /// Returns a sandbox's record from the disk.
    fn read(&self, id: &str) -> Result<Option<Sandbox>, Error> {
        let path = self.directory(id).join(SANDBOX);
        let found = match record::read::<SandboxRecord>(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                tracing::warn!(sandbox = id, %error, "the record of a sandbox is damaged: the sandbox counts as gone");
                return Ok(None);
            }
            found => found.map_err(io_error("read", &path))?,
        };
        let Some(SandboxRecord { mut sandbox, .. }) = found else {
            return Ok(None);
        };
        let containers = fs::read_dir(self.directory(id).join(CONTAINERS));
        for entry in containers.into_iter().flatten().flatten() {
            // An incomplete container has no record; it is removed with the sandbox.
            if let Ok(Some(container)) = record::read::<Container>(&entry.path().join(RECORD)) {
                sandbox.containers.push(container);
            }
        }
        sandbox.containers.sort_by_key(|container| container.created_at);
        Ok(Some(sandbox))
    }
}

pub(crate) fn ended(mut container: Container) -> Container {
    let started_at = match container.state {
        State::Exited { .. } => return container,
        State::Running { started_at, .. } => Some(started_at),
        State::Created => None,
    };
    let exit = Exit {
        code: 137,
        signal: Some(9),
        oom_killed: false,
        finished_at: now(),
    };
    container.state = State::Exited { exit, started_at };
    container
}
