//! Execs with collected output, by containerd.

use std::sync::Arc;
use std::time::Duration;

use oci_spec::runtime::Process;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::process::{Exec, OUTPUTS, Pipes};
use crate::containerd::Shared;
use crate::error::io_error;
use crate::{Error, ExecResult, ExecSpec, Refusal};

/// Upper bound of a timeout, whatever the pod specifies.
const LONGEST: Duration = Duration::from_hours(24 * 365);
/// Time to wait for an exec's output after its program has exited.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// Timeout of a killed program's exit.
const DEATH: Duration = Duration::from_secs(5);
/// Limit of kept output, in bytes.
const OUTPUT_LIMIT: usize = 16 << 10;

type Answer = oneshot::Sender<Result<ExecResult, Error>>;

/// Exec in progress.
struct Running {
    exec: Exec,
    kept: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Shared {
    /// Runs a program until it exits, times out, or its caller goes away.
    pub(in crate::containerd) async fn exec(
        self: &Arc<Self>,
        sandbox: &str,
        container: &str,
        spec: ExecSpec,
    ) -> Result<ExecResult, Error> {
        let (exec, stored) = Exec::new(self, sandbox, container)?;
        let process = adapted(stored, &spec.argv, &spec.env, false);
        let running = Running {
            exec,
            kept: Vec::new(),
            limit: spec.output_limit.min(OUTPUT_LIMIT),
            truncated: false,
        };
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            let mut answer = answer;
            let result = Box::pin(running.run(&process, spec.timeout, &mut answer)).await;
            // The caller may be gone; then the program was killed.
            drop(answer.send(result));
        });
        let lost = |error: oneshot::error::RecvError| Error::from(Refusal::failed("exec", &error));
        answered.await.map_err(lost)?
    }
}

/// Adapts the container's own process to another program.
pub(in crate::containerd) fn adapted(
    mut process: Process,
    argv: &[String],
    env: &[(String, String)],
    terminal: bool,
) -> Process {
    let overridden = |entry: &String| {
        let name = entry.split('=').next();
        env.iter().any(|(given, _)| Some(given.as_str()) == name) || (terminal && name == Some("TERM"))
    };
    let mut all = process.env().clone().unwrap_or_default();
    all.retain(|entry| !overridden(entry));
    all.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
    all.extend(terminal.then(|| "TERM=xterm".to_owned()));
    process
        .set_env(Some(all))
        .set_args(Some(argv.to_vec()))
        .set_terminal(Some(terminal));
    process
}

impl Running {
    async fn run(mut self, process: &Process, timeout: Duration, answer: &mut Answer) -> Result<ExecResult, Error> {
        // Never closed.
        let shared = Arc::clone(&self.exec.shared);
        let _permit = shared.execs.acquire().await;
        let deadline = Instant::now() + timeout.min(LONGEST);
        let result = match self.begin(process).await {
            Ok((pid, mut output)) => self.finish(pid, &mut output, deadline, answer).await,
            Err(error) => Err(error),
        };
        self.exec.delete().await;
        result
    }

    /// Starts the program; returns its pid and its output.
    async fn begin(&self, process: &Process) -> Result<(i32, pipe::Receiver), Error> {
        let [name, _] = OUTPUTS;
        let path = self.exec.pipe(name)?;
        let output = pipe::OpenOptions::new().open_receiver(&path);
        let output = output.map_err(io_error("open", &path))?;
        let pipes = Pipes {
            stderr: Some(path.clone()),
            stdout: path,
            ..Pipes::default()
        };
        Ok((self.exec.start(process, &pipes).await?, output))
    }

    async fn finish(
        &mut self,
        pid: i32,
        output: &mut pipe::Receiver,
        deadline: Instant,
        answer: &mut Answer,
    ) -> Result<ExecResult, Error> {
        let Self {
            exec,
            kept,
            limit: most,
            truncated,
        } = self;
        let mut exit = std::pin::pin!(exec.wait());
        let (mut timed_out, mut open, mut limit) = (false, true, deadline);
        let exit_code = loop {
            tokio::select! {
                // After a delay, the exit and the timeout may be ready at once with output; output
                // must not hide either.
                biased;
                code = &mut exit => break code?,
                () = tokio::time::sleep_until(limit) => {
                    if timed_out {
                        return Err(Refusal::Failed {
                            doing: "exec".to_owned(),
                            cause: "the program does not die".to_owned(),
                        }
                        .into());
                    }
                    (timed_out, limit) = (true, Instant::now() + DEATH);
                    exec.kill(pid).await;
                }
                () = answer.closed(), if !timed_out => limit = Instant::now(),
                more = read(output, kept, *most, truncated), if open => open = more,
            }
        };
        exec.kill_session(pid);
        let drain = Instant::now() + DRAIN_LIMIT;
        while open {
            match tokio::time::timeout_at(drain, read(output, kept, *most, truncated)).await {
                Ok(more) => open = more,
                Err(_elapsed) => break,
            }
        }
        Ok(ExecResult {
            exit_code,
            output: std::mem::take(kept),
            truncated: *truncated,
            timed_out,
        })
    }
}

/// Reads once; returns whether there may be more.
async fn read(output: &mut pipe::Receiver, kept: &mut Vec<u8>, limit: usize, truncated: &mut bool) -> bool {
    let mut chunk = [0; 4096];
    let Ok(length @ 1..) = output.read(&mut chunk).await else {
        return false;
    };
    let room = limit.saturating_sub(kept.len());
    *truncated |= length > room;
    kept.extend_from_slice(chunk.get(..length.min(room)).unwrap_or_default());
    true
}
