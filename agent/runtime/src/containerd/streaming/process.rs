//! Execs in a container by containerd: their pipes, calls and exit.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use containerd_client::services::v1::{
    DeleteProcessRequest, ExecProcessRequest, KillRequest, StartRequest, WaitRequest,
};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use oci_spec::runtime::Process;
use prost_types::Any;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::clock::now;
use crate::containerd::Shared;
use crate::containerd::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use crate::containerd::container::creation::{self, PROCESS};
use crate::error::io_error;
use crate::files::{record, remove_directory};
use crate::supervisor::session;
use crate::{Error, Refusal, State, sys};

/// Type URL of an OCI process.
const KIND: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// Interval at which the wait for an exit without a timeout is repeated.
const LONG: Duration = Duration::from_hours(24);
/// Pipes in its directory that the shim writes to.
pub(in crate::containerd) const OUTPUTS: [&str; 2] = ["stdout", "stderr"];
/// Number of attempts to kill the remaining processes: each time they may have forked.
const ATTEMPTS: u32 = 10;

/// Keeps a pipe open for reading. A shim that opens a pipe without a reader blocks, and its whole
/// pod with it. So a reader is kept if it is unknown whether the shim has opened the pipe: after a
/// call without an answer, and for execs of an earlier agent.
struct FifoReader {
    shared: Arc<Shared>,
    pipe: Option<pipe::Receiver>,
}

impl FifoReader {
    fn open(shared: &Arc<Shared>, path: &Path) -> io::Result<Self> {
        // Read-write, so that it has no end.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(path)?;
        Ok(Self {
            shared: Arc::clone(shared),
            pipe: Some(pipe),
        })
    }

    fn release(&mut self, now: bool) {
        if now {
            self.pipe = None;
        }
    }
}

impl Drop for FifoReader {
    fn drop(&mut self) {
        let Some(mut pipe) = self.pipe.take() else { return };
        self.shared.spawn(async move {
            let discard = async {
                let mut chunk = [0; 4096];
                while pipe.read(&mut chunk).await.is_ok_and(|length| length > 0) {}
            };
            // A pipe is not opened later than this: calls have their deadlines.
            drop(tokio::time::timeout(TASK, discard).await);
        });
    }
}

/// Exec of one program. Its directory is in the container's.
pub(in crate::containerd) struct Exec {
    pub(in crate::containerd) shared: Arc<Shared>,
    pub(in crate::containerd) container: String,
    group: PathBuf,
    pub(in crate::containerd) id: String,
    directory: PathBuf,
}

/// Pipes of an exec: its own, or a terminal's.
#[derive(Default)]
pub(in crate::containerd) struct Pipes {
    pub(in crate::containerd) stdin: Option<PathBuf>,
    pub(in crate::containerd) stdout: PathBuf,
    /// `None` with a terminal.
    pub(in crate::containerd) stderr: Option<PathBuf>,
    pub(in crate::containerd) terminal: bool,
}

impl Exec {
    /// Prepares an exec in a running container; also returns the container's own OCI process.
    pub(in crate::containerd) fn new(
        shared: &Arc<Shared>,
        sandbox: &str,
        container: &str,
    ) -> Result<(Self, Process), Error> {
        let found = shared.container(sandbox, container)?;
        if !matches!(found.state, State::Running { .. }) {
            return Err(Refusal::wrong_state(&found).into());
        }
        let own = shared.container_directory(sandbox, container);
        let stored = record::read::<Process>(&own.join(PROCESS)).map_err(io_error("read", &own))?;
        let process = stored.ok_or_else(|| Refusal::ContainerNotFound(container.to_owned()))?;
        // Differs from execs of an earlier agent, whose programs may still run.
        let since = now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("e{since:x}-{}", shared.exec_count.fetch_add(1, Ordering::Relaxed));
        let exec = Self {
            shared: Arc::clone(shared),
            container: container.to_owned(),
            group: shared.group(sandbox).join(container),
            directory: own.join(&id),
            id,
        };
        let made = fs::DirBuilder::new().mode(0o700).create(&exec.directory);
        made.map_err(io_error("create", &exec.directory))?;
        Ok((exec, process))
    }

    /// Creates a pipe for the shim to open.
    pub(in crate::containerd) fn pipe(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        let made = mkfifo(&path, Mode::from_bits_truncate(0o600)).map_err(io::Error::from);
        made.map_err(io_error("create", &path))?;
        Ok(path)
    }

    /// Starts the program; returns its PID. Its output must have readers already.
    pub(in crate::containerd) async fn start(&self, process: &Process, pipes: &Pipes) -> Result<i32, Error> {
        let outputs = [Some(&pipes.stdout), pipes.stderr.as_ref()];
        let mut readers = Vec::new();
        for path in outputs.into_iter().flatten() {
            readers.push(FifoReader::open(&self.shared, path).map_err(io_error("open", path))?);
        }
        let text = |path: Option<&PathBuf>| path.map(|path| path.display().to_string()).unwrap_or_default();
        let spec = serde_json::to_vec(process).map_err(|error| Refusal::failed("encode the process", &error))?;
        let (client, container_id) = (&self.shared.client, self.container.clone());
        let request = client.request(ExecProcessRequest {
            container_id: container_id.clone(),
            exec_id: self.id.clone(),
            stdin: text(pipes.stdin.as_ref()),
            stdout: text(Some(&pipes.stdout)),
            stderr: text(pipes.stderr.as_ref()),
            terminal: pipes.terminal,
            spec: Some(Any {
                type_url: KIND.to_owned(),
                value: spec,
            }),
        });
        within(CALL, "exec", client.tasks().exec(request)).await?;
        let request = client.request(StartRequest {
            container_id,
            exec_id: self.id.clone(),
        });
        let started = within(TASK, "exec", client.tasks().start(request)).await;
        // containerd answered, so the shim does not wait for a reader.
        let silent = started.as_ref().is_err_and(|error| meaning(error) == Meaning::Silent);
        for reader in &mut readers {
            reader.release(!silent);
        }
        let pid = started.map_err(creation::program)?.pid;
        Ok(i32::try_from(pid).map_err(|error| Refusal::failed("exec", &error))?)
    }

    /// Waits for its exit; returns the exit code.
    pub(in crate::containerd) async fn wait(&self) -> Result<i32, Error> {
        let request = self.shared.client.request(WaitRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
        });
        let exited = within(LONG, "wait for an exec", self.shared.client.tasks().wait(request)).await?;
        Ok(i32::try_from(exited.exit_status).unwrap_or(255))
    }

    /// Deletes it in containerd and its files.
    pub(in crate::containerd) async fn delete(&self) {
        let request = self.shared.client.request(DeleteProcessRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
        });
        let deleted = within(CALL, "delete exec", self.shared.client.tasks().delete_process(request)).await;
        if let Err(error) = or_gone(deleted) {
            tracing::debug!(container = self.container, %error, "an exec stays with its container");
        }
        let mut failures = Vec::new();
        remove_directory(&self.directory, &mut failures);
        for failure in failures {
            tracing::warn!(container = self.container, failure, "what an exec left");
        }
    }

    /// Kills it and the processes that it started.
    pub(in crate::containerd) async fn kill(&self, pid: i32) {
        let request = self.shared.client.request(KillRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
            signal: libc::SIGKILL.unsigned_abs(),
            all: false,
        });
        let killed = within(CALL, "kill an exec", self.shared.client.tasks().kill(request)).await;
        if let Err(error) = or_gone(killed) {
            tracing::warn!(container = self.container, %error, "an exec is killed without containerd");
            // Its PID may be reused by now, but not in this container and by a session leader.
            let members = self.shared.cgroups.members(&self.group).unwrap_or_default();
            if members.contains(&pid) {
                kill_member(pid, pid);
            }
        }
        self.kill_session(pid);
    }

    /// Kills the processes that the program left behind: it led a session, and they are in it
    /// unless they left deliberately.
    pub(super) fn kill_session(&self, leader: i32) {
        for _ in 0..ATTEMPTS {
            let members = self.shared.cgroups.members(&self.group).unwrap_or_default();
            let left: Vec<i32> = members
                .into_iter()
                .filter(|pid| *pid != leader && session(*pid) == Some(leader))
                .collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                kill_member(pid, leader);
            }
        }
    }
}

/// Kills a process of a session. Its PID may have been reused: then it is not in this session.
fn kill_member(pid: i32, leader: i32) {
    if let Ok(process) = sys::pidfd_open(pid)
        && session(pid) == Some(leader)
    {
        drop(sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL));
    }
}

impl Shared {
    /// Unblocks shims that wait for an earlier agent to read an exec's output.
    pub(in crate::containerd) fn release_execs(self: &Arc<Self>) {
        let containers: Vec<PathBuf> = {
            let records = self.records();
            let all = records.iter().flat_map(|entry| {
                let sandbox = &entry.record.sandbox;
                let own = sandbox.containers.iter();
                own.map(|container| self.container_directory(&sandbox.id, &container.id))
            });
            all.collect()
        };
        for container in containers {
            for entry in fs::read_dir(container).into_iter().flatten().flatten() {
                for path in OUTPUTS.map(|name| entry.path().join(name)) {
                    let is_pipe = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_fifo());
                    if is_pipe && let Err(error) = FifoReader::open(self, &path) {
                        tracing::warn!(path = %path.display(), %error, "an exec of an earlier agent may wait");
                    }
                }
            }
        }
    }
}
