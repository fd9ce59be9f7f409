//! Execs with streams: pipes or a terminal directly between the shim and the agent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use containerd_client::services::v1::{CloseIoRequest, ResizePtyRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use oci_spec::runtime::Process;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::exec::adapted;
use super::process::{Exec, OUTPUTS, Pipes};
use super::writer::Writer;
use crate::containerd::Shared;
use crate::containerd::client::{CALL, or_gone, within};
use crate::error::io_error;
use crate::session::{Input, Output, Session, Terminal};
use crate::{Error, Refusal, Size, StreamSpec};

/// Timeout of a killed program's exit.
const DEATH: Duration = Duration::from_secs(5);

/// Program whose streams are in use. With the last reference it is killed, if it still runs, and
/// deleted.
struct Running {
    exec: Option<Exec>,
    pid: i32,
    exited: AtomicBool,
}

impl Running {
    /// Present until the last reference is dropped.
    fn exec(&self) -> Result<&Exec, Error> {
        let gone = || Refusal::ContainerNotFound(String::new());
        Ok(self.exec.as_ref().ok_or_else(gone)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(exec) = self.exec.take() else { return };
        let (shared, pid, exited) = (Arc::clone(&exec.shared), self.pid, self.exited.load(Ordering::Acquire));
        shared.spawn(async move {
            if !exited {
                exec.kill(pid).await;
                if let Ok(Err(error)) = tokio::time::timeout(DEATH, exec.wait()).await {
                    tracing::debug!(%error, "an exec that nobody waits for");
                }
            }
            exec.delete().await;
        });
    }
}

/// Kills the program when its caller no longer waits for the exit, even if its streams are still in
/// use.
struct Ending(Arc<Running>);

impl Ending {
    async fn end(self) -> Result<i32, Error> {
        let code = self.0.exec()?.wait().await?;
        self.0.exited.store(true, Ordering::Release);
        Ok(code)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.exited.load(Ordering::Acquire) {
            return;
        }
        let running = Arc::clone(&self.0);
        let Ok(exec) = running.exec() else { return };
        Arc::clone(&exec.shared).spawn(async move {
            if let Ok(exec) = running.exec() {
                exec.kill(running.pid).await;
            }
        });
    }
}

struct Reader {
    pipe: pipe::Receiver,
    _running: Arc<Running>,
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(context, into)
    }
}

/// Closes the shim's end: it keeps the input open until it is told to.
fn close(running: &Arc<Running>) {
    let running = Arc::clone(running);
    let Ok(exec) = running.exec() else { return };
    Arc::clone(&exec.shared).spawn(async move {
        let Ok(exec) = running.exec() else { return };
        let request = exec.shared.client.request(CloseIoRequest {
            container_id: exec.container.clone(),
            exec_id: exec.id.clone(),
            stdin: true,
        });
        let closed = within(CALL, "close the input", exec.shared.client.tasks().close_io(request)).await;
        if let Err(error) = or_gone(closed) {
            tracing::warn!(%error, "the end of an input is not told");
        }
    });
}

struct Screen(Arc<Running>);

impl Terminal for Screen {
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let exec = self.0.exec()?;
            let request = exec.shared.client.request(ResizePtyRequest {
                container_id: exec.container.clone(),
                exec_id: exec.id.clone(),
                width: size.width.into(),
                height: size.height.into(),
            });
            let resized = within(
                CALL,
                "resize the terminal",
                exec.shared.client.tasks().resize_pty(request),
            )
            .await;
            or_gone(resized).map(drop)
        }
        .boxed()
    }
}

impl Shared {
    /// Starts a program with streams of its own. If the caller goes away meanwhile, dropping the
    /// session ends the program.
    pub(in crate::containerd) async fn exec_stream(
        self: &Arc<Self>,
        sandbox: &str,
        container: &str,
        spec: StreamSpec,
    ) -> Result<Session, Error> {
        let (exec, stored) = Exec::new(self, sandbox, container)?;
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(self);
        self.spawn(async move {
            drop(answer.send(shared.open(exec, stored, spec).await));
        });
        let lost = |error: oneshot::error::RecvError| Error::from(Refusal::failed("exec", &error));
        answered.await.map_err(lost)?
    }

    async fn open(self: &Arc<Self>, exec: Exec, stored: Process, spec: StreamSpec) -> Result<Session, Error> {
        let begun = self
            .begin(&exec, &adapted(stored, &spec.argv, &[], spec.tty), &spec)
            .await;
        let (pid, stdin, mut outputs) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                exec.delete().await;
                return Err(error);
            }
        };
        let running = Arc::new(Running {
            exec: Some(exec),
            pid,
            exited: AtomicBool::new(false),
        });
        let writer = |pipe| -> Input {
            let running = Arc::clone(&running);
            Box::pin(Writer::new(Some(pipe), move || close(&running)))
        };
        let stdin = stdin.map(writer);
        let mut hand_out = |wanted: bool| -> Option<Output> {
            let pipe = outputs.pop()?;
            if !wanted {
                self.discard(pipe);
                return None;
            }
            let running = Arc::clone(&running);
            Some(Box::pin(Reader {
                pipe,
                _running: running,
            }))
        };
        // In reverse order.
        let stderr = if spec.tty { None } else { hand_out(spec.streams.stderr) };
        let stdout = hand_out(spec.tty || spec.streams.stdout);
        let terminal: Option<Box<dyn Terminal>> = if spec.tty {
            Some(Box::new(Screen(Arc::clone(&running))))
        } else {
            None
        };
        let end = Ending(running).end().boxed();
        Ok(Session {
            stdin,
            stdout,
            stderr,
            terminal,
            end,
        })
    }

    async fn begin(
        &self,
        exec: &Exec,
        process: &Process,
        spec: &StreamSpec,
    ) -> Result<(i32, Option<pipe::Sender>, Vec<pipe::Receiver>), Error> {
        let [stdout, stderr] = OUTPUTS;
        let mut pipes = Pipes {
            stdout: exec.pipe(stdout)?,
            terminal: spec.tty,
            ..Pipes::default()
        };
        if !spec.tty {
            pipes.stderr = Some(exec.pipe(stderr)?);
        }
        let mut outputs = Vec::new();
        for path in [Some(&pipes.stdout), pipes.stderr.as_ref()].into_iter().flatten() {
            let output = pipe::OpenOptions::new().open_receiver(path);
            outputs.push(output.map_err(io_error("open", path))?);
        }
        let mut stdin = None;
        if spec.streams.stdin {
            let path = exec.pipe("stdin")?;
            // Read-write, because the pipe has no reader yet.
            let sender = pipe::OpenOptions::new().read_write(true).open_sender(&path);
            stdin = Some(sender.map_err(io_error("open", &path))?);
            pipes.stdin = Some(path);
        }
        Ok((exec.start(process, &pipes).await?, stdin, outputs))
    }

    /// Reads and discards output that no client wants, so that the program does not block.
    fn discard(&self, mut pipe: pipe::Receiver) {
        self.spawn(async move {
            let mut chunk = [0; 4096];
            while pipe.read(&mut chunk).await.is_ok_and(|length| length > 0) {}
        });
    }
}
