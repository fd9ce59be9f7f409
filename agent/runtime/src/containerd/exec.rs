//! Running a program in a container, by containerd.

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
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use super::creation::{self, PROCESS};
use super::methods::wrong_state;
use super::{Shared, removal};
use crate::clock::now;
use crate::embedded::io_error;
use crate::supervisor::session;
use crate::{Error, ExecResult, ExecSpec, Refusal, State, record, sys};

/// How containerd knows a process of an OCI configuration.
const KIND: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// The pipe in an exec's directory.
const OUTPUT: &str = "output";
/// Output of an exec is waited for so long after its program is gone.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// A killed program has so long to be gone.
const DEATH: Duration = Duration::from_secs(5);
/// Most that is kept of an exec's output, in bytes.
const OUTPUT_LIMIT: usize = 16 << 10;
/// A program that was not found, and one that could not be run.
const NOT_FOUND: i32 = 127;
const CANNOT_RUN: i32 = 126;
/// Leftovers are looked for so often: each time they may have forked.
const ROUNDS: u32 = 10;

/// A shim that opens a pipe for which there is no reader waits for one, and its whole pod with it. So one is kept where it
/// cannot be known whether the shim has opened it: after a call without an answer, and for execs of an earlier agent.
struct Hold {
    shared: Arc<Shared>,
    pipe: Option<pipe::Receiver>,
}

impl Hold {
    fn open(shared: &Arc<Shared>, path: &Path) -> io::Result<Self> {
        // For both directions, so that it has no end.
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

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(mut pipe) = self.pipe.take() else { return };
        self.shared.spawn(async move {
            let discard = async {
                let mut chunk = [0; 4096];
                while pipe.read(&mut chunk).await.is_ok_and(|length| length > 0) {}
            };
            // Nobody opens it after that: calls have their deadlines.
            drop(tokio::time::timeout(TASK, discard).await);
        });
    }
}

/// One exec under way.
struct Running {
    shared: Arc<Shared>,
    sandbox: String,
    container: String,
    group: PathBuf,
    id: String,
    directory: PathBuf,
    kept: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Shared {
    /// Runs a program to its end, its time-out or until nobody waits for it any more.
    pub(super) async fn exec(
        self: &Arc<Self>,
        sandbox: &str,
        container: &str,
        spec: ExecSpec,
    ) -> Result<ExecResult, Error> {
        let found = self.container(sandbox, container)?;
        if !matches!(found.state, State::Running { .. }) {
            return Err(wrong_state(&found));
        }
        let own = self.container_directory(sandbox, container);
        let stored = record::read::<Process>(&own.join(PROCESS)).map_err(io_error("read", &own))?;
        let process = stored.map(|stored| adapted(stored, &spec));
        let process = process.ok_or_else(|| Refusal::ContainerNotFound(container.to_owned()))?;
        // Unlike those of an earlier agent, whose programs may still run.
        let since = now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = format!("e{since:x}-{}", self.exec_count.fetch_add(1, Ordering::Relaxed));
        let running = Running {
            shared: Arc::clone(self),
            sandbox: sandbox.to_owned(),
            container: container.to_owned(),
            group: self.group(sandbox).join(container),
            directory: own.join(&id),
            id,
            kept: Vec::new(),
            limit: spec.output_limit.min(OUTPUT_LIMIT),
            truncated: false,
        };
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            let mut answer = answer;
            let result = Box::pin(running.run(&process, spec.timeout, &mut answer)).await;
            // Who asked may have gone away; then the program was killed.
            drop(answer.send(result));
        });
        let lost = |error: oneshot::error::RecvError| Error::from(Refusal::failed("exec", &error));
        answered.await.map_err(lost)?
    }
}

impl Shared {
    /// Lets go on who waits for an earlier agent to read what an exec prints.
    pub(super) fn release_execs(self: &Arc<Self>) {
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
                let path = entry.path().join(OUTPUT);
                let is_pipe = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_fifo());
                if is_pipe && let Err(error) = Hold::open(self, &path) {
                    tracing::warn!(path = %path.display(), %error, "an exec of an earlier agent may wait");
                }
            }
        }
    }
}

/// The container's own process with another program.
fn adapted(mut process: Process, spec: &ExecSpec) -> Process {
    let overridden = |entry: &String| {
        let name = entry.split('=').next();
        spec.env.iter().any(|(given, _)| Some(given.as_str()) == name)
    };
    let mut env = process.env().clone().unwrap_or_default();
    env.retain(|entry| !overridden(entry));
    env.extend(spec.env.iter().map(|(name, value)| format!("{name}={value}")));
    process
        .set_env(Some(env))
        .set_args(Some(spec.argv.clone()))
        .set_terminal(Some(false));
    process
}

impl Running {
    async fn run(
        mut self,
        process: &Process,
        timeout: Duration,
        answer: &mut oneshot::Sender<Result<ExecResult, Error>>,
    ) -> Result<ExecResult, Error> {
        // Never closed.
        let shared = Arc::clone(&self.shared);
        let _permit = shared.execs.acquire().await;
        let deadline = Instant::now() + timeout;
        let result = match self.begin(process).await {
            Ok((pid, mut output)) => self.finish(pid, &mut output, deadline, answer).await,
            Err(Error::Refused(Refusal::Program(why))) => Ok(not_run(&why)),
            Err(error) => Err(error),
        };
        let request = self.shared.client.request(DeleteProcessRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
        });
        let deleted = within(CALL, "delete exec", self.shared.client.tasks().delete_process(request)).await;
        if let Err(error) = or_gone(deleted) {
            tracing::debug!(container = self.container, %error, "an exec stays with its container");
        }
        let mut failures = Vec::new();
        removal::remove_directory(&self.directory, &mut failures);
        for failure in failures {
            tracing::warn!(container = self.container, failure, "what an exec left");
        }
        result
    }

    /// Starts the program; returns its pid and its output.
    async fn begin(&self, process: &Process) -> Result<(i32, pipe::Receiver), Error> {
        let path = self.directory.join(OUTPUT);
        let failed = |error: io::Error| Error::from(Refusal::failed("make a pipe", &error));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&self.directory)
            .map_err(failed)?;
        mkfifo(&path, Mode::from_bits_truncate(0o600)).map_err(|error| failed(error.into()))?;
        let output = pipe::OpenOptions::new().open_receiver(&path).map_err(failed)?;
        let mut hold = Hold::open(&self.shared, &path).map_err(failed)?;
        let spec = serde_json::to_vec(process).map_err(|error| Refusal::failed("encode the process", &error))?;
        let path = path.display().to_string();
        let (client, container_id) = (&self.shared.client, self.container.clone());
        let request = client.request(ExecProcessRequest {
            container_id: container_id.clone(),
            exec_id: self.id.clone(),
            stdout: path.clone(),
            stderr: path,
            spec: Some(Any {
                type_url: KIND.to_owned(),
                value: spec,
            }),
            ..ExecProcessRequest::default()
        });
        within(CALL, "exec", client.tasks().exec(request)).await?;
        let request = client.request(StartRequest {
            container_id,
            exec_id: self.id.clone(),
        });
        let started = within(TASK, "exec", client.tasks().start(request)).await;
        // It answered, so it waits for nobody to read.
        let answered = matches!(&started, Err(error) if meaning(error) != Meaning::Silent) || started.is_ok();
        hold.release(answered);
        let pid = started.map_err(creation::program)?.pid;
        let pid = i32::try_from(pid).map_err(|error| Refusal::failed("exec", &error))?;
        Ok((pid, output))
    }

    async fn finish(
        &mut self,
        pid: i32,
        output: &mut pipe::Receiver,
        deadline: Instant,
        answer: &mut oneshot::Sender<Result<ExecResult, Error>>,
    ) -> Result<ExecResult, Error> {
        let client = self.shared.client.clone();
        let mut tasks = client.tasks();
        let request = client.request(WaitRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
        });
        let mut exit = std::pin::pin!(tasks.wait(request));
        let (mut timed_out, mut open, mut limit) = (false, true, deadline);
        let exited = loop {
            tokio::select! {
                exited = &mut exit => break exited,
                more = self.read(output), if open => open = more,
                () = tokio::time::sleep_until(limit) => {
                    if timed_out {
                        return Err(Refusal::Failed {
                            doing: "exec".to_owned(),
                            cause: "the program does not die".to_owned(),
                        }
                        .into());
                    }
                    (timed_out, limit) = (true, Instant::now() + DEATH);
                    self.kill(pid).await;
                }
                () = answer.closed(), if !timed_out => limit = Instant::now(),
            }
        };
        let exited = within(CALL, "wait for an exec", async { exited }).await?;
        self.kill_session(pid);
        self.shared.settle_oom_kills(&self.sandbox, &self.container);
        let drain = Instant::now() + DRAIN_LIMIT;
        while open {
            match tokio::time::timeout_at(drain, self.read(output)).await {
                Ok(more) => open = more,
                Err(_elapsed) => break,
            }
        }
        Ok(ExecResult {
            exit_code: i32::try_from(exited.exit_status).unwrap_or(255),
            output: std::mem::take(&mut self.kept),
            truncated: self.truncated,
            timed_out,
        })
    }

    /// Reads once; says whether there may be more.
    async fn read(&mut self, output: &mut pipe::Receiver) -> bool {
        let mut chunk = [0; 4096];
        let Ok(length @ 1..) = output.read(&mut chunk).await else {
            return false;
        };
        let room = self.limit.saturating_sub(self.kept.len());
        self.truncated |= length > room;
        self.kept
            .extend_from_slice(chunk.get(..length.min(room)).unwrap_or_default());
        true
    }

    async fn kill(&self, pid: i32) {
        let request = self.shared.client.request(KillRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
            signal: libc::SIGKILL.unsigned_abs(),
            all: false,
        });
        let killed = within(CALL, "kill an exec", self.shared.client.tasks().kill(request)).await;
        if let Err(error) = or_gone(killed) {
            tracing::warn!(container = self.container, %error, "an exec could not be killed");
        }
        self.kill_session(pid);
    }

    /// Kills what the program left behind: it led a session, and what it started is in it unless it took care to leave.
    fn kill_session(&self, leader: i32) {
        for _ in 0..ROUNDS {
            let members = self.shared.cgroups.members(&self.group).unwrap_or_default();
            let left: Vec<i32> = members
                .into_iter()
                .filter(|pid| *pid != leader && session(*pid) == Some(leader))
                .collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                // It may be gone, and its pid another's: that one is not in this session.
                if let Ok(process) = sys::pidfd_open(pid)
                    && session(pid) == Some(leader)
                {
                    drop(sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL));
                }
            }
        }
    }
}

/// The program's output is where a person looks for this.
fn not_run(why: &str) -> ExecResult {
    let missing = ["executable file not found", "no such file or directory"];
    let exit_code = if missing.iter().any(|words| why.contains(words)) {
        NOT_FOUND
    } else {
        CANNOT_RUN
    };
    ExecResult {
        exit_code,
        output: format!("{why}\n").into_bytes(),
        truncated: false,
        timed_out: false,
    }
}
