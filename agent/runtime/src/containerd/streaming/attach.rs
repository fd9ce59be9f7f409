//! Attaching to a container: output comes from its logger, input goes to the pipe that its shim
//! reads.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::services::v1::{CloseIoRequest, ResizePtyRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::writer::Writer;
use crate::containerd::Shared;
use crate::containerd::client::{CALL, or_gone, within};
use crate::containerd::logger::audience;
use crate::containerd::logger::{self, Order};
use crate::error::io_error;
use crate::files::record;
use crate::session::{Input, Pipes, Session, Terminal};
use crate::{Error, Refusal, Size, State, Stdin, Streams, sys};

/// File in a container's directory: present once the container's single input session (`stdinOnce`)
/// has begun.
const ONCE: &str = "once";

/// Container to attach to.
struct Target {
    shared: Arc<Shared>,
    container: String,
}

impl Terminal for Target {
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let request = self.shared.client.request(ResizePtyRequest {
                container_id: self.container.clone(),
                exec_id: String::new(),
                width: size.width.into(),
                height: size.height.into(),
            });
            let mut tasks = self.shared.client.tasks();
            let resized = within(CALL, "resize the terminal", tasks.resize_pty(request)).await;
            or_gone(resized).map(drop)
        }
        .boxed()
    }
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Refusal::failed(doing, &error).into()
}

impl Shared {
    /// Attaches to the streams of a running container.
    pub(in crate::containerd) async fn attach(
        self: &Arc<Self>,
        sandbox: &str,
        container: &str,
        streams: Streams,
    ) -> Result<Session, Error> {
        let found = self.container(sandbox, container)?;
        if !matches!(found.state, State::Running { .. }) {
            return Err(Refusal::wrong_state(&found).into());
        }
        let directory = self.container_directory(sandbox, container);
        let order = record::read::<Order>(&directory.join(logger::ORDER)).map_err(io_error("read", &directory))?;
        let order = order.ok_or_else(|| Refusal::ContainerNotFound(container.to_owned()))?;
        let outputs = Streams {
            stdin: false,
            stderr: streams.stderr && !order.terminal,
            ..streams
        };
        let pipes = Pipes::make(outputs).map_err(failed("make pipes"))?;
        let joining = tokio::time::timeout(CALL, join(&directory, outputs, pipes.theirs));
        let mut connection = joining
            .await
            .map_err(io::Error::from)
            .flatten()
            .map_err(failed("join the container's logger"))?;
        let target = || Target {
            shared: Arc::clone(self),
            container: container.to_owned(),
        };
        let mut typed = None;
        let stdin = if streams.stdin {
            let (writer, over) = input(&directory, &order, target())?;
            typed = over;
            Some(Box::pin(writer) as Input)
        } else {
            None
        };
        let end = async move {
            let ended = async {
                // The logger sends no more on the connection: end-of-file means that the output, or
                // the logger, has ended.
                drop(connection.read(&mut [0]).await);
            };
            match typed {
                Some(typed) => tokio::select! {
                    () = ended => {}
                    _ = typed => {}
                },
                None => ended.await,
            }
            // Keep the other end open only as long as this one.
            drop(connection);
            Ok(0)
        };
        let terminal: Option<Box<dyn Terminal>> = if order.terminal { Some(Box::new(target())) } else { None };
        Ok(Session {
            stdin,
            stdout: pipes.stdout,
            stderr: pipes.stderr,
            terminal,
            end: end.boxed(),
        })
    }

    /// Closes a container's input.
    async fn close_input(&self, container: &str) {
        let request = self.client.request(CloseIoRequest {
            container_id: container.to_owned(),
            exec_id: String::new(),
            stdin: true,
        });
        let closed = within(CALL, "close the input", self.client.tasks().close_io(request)).await;
        if let Err(error) = or_gone(closed) {
            tracing::warn!(container, %error, "the end of an input is not told");
        }
    }

    /// Closes inputs whose client was connected to an earlier agent (`stdinOnce`).
    pub(in crate::containerd) fn close_inputs(self: &Arc<Self>) {
        let containers: Vec<(String, PathBuf)> = {
            let records = self.records();
            let all = records.iter().flat_map(|entry| {
                let sandbox = &entry.record.sandbox;
                let running = |container: &&crate::Container| matches!(container.state, State::Running { .. });
                let own = sandbox.containers.iter().filter(running);
                own.map(|container| {
                    let directory = self.container_directory(&sandbox.id, &container.id);
                    (container.id.clone(), directory.join(ONCE))
                })
            });
            all.collect()
        };
        for (container, mark) in containers {
            if mark.exists() {
                let shared = Arc::clone(self);
                self.spawn(async move { shared.close_input(&container).await });
            }
        }
    }
}

/// Opens the container's input; returns with it the receiver that fires at the end of the client's
/// input, if that ends the session.
fn input(directory: &Path, order: &Order, target: Target) -> Result<(Writer, Option<oneshot::Receiver<()>>), Error> {
    let none = || (Writer::new(None, || {}), None);
    if order.stdin == Stdin::Closed {
        return Ok(none());
    }
    let path = directory.join(logger::INPUT);
    let pipe = match pipe::OpenOptions::new().open_sender(&path) {
        Ok(pipe) => Some(pipe),
        // No reader: the container has closed its input.
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => return Ok(none()),
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    if order.stdin == Stdin::Once && !order.terminal {
        // On disk first: even if the agent dies now, the input counts as used.
        fs::File::create(directory.join(ONCE)).map_err(io_error("mark", directory))?;
        let end = move || {
            let Target { shared, container } = target;
            Arc::clone(&shared).spawn(async move { shared.close_input(&container).await });
        };
        return Ok((Writer::new(pipe, end), None));
    }
    // Dropping this ends the session.
    let (over, typed) = oneshot::channel::<()>();
    Ok((Writer::new(pipe, move || drop(over)), Some(typed)))
}

/// Passes our ends of pipes to a container's logger, and waits until it has taken them.
async fn join(directory: &Path, outputs: Streams, descriptors: Vec<std::os::fd::OwnedFd>) -> io::Result<UnixStream> {
    let directory = fs::File::open(directory)?;
    // A short path, however long that of the state directory is.
    let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), audience::SOCKET);
    let mut connection = UnixStream::connect(path).await?;
    let mut words = vec![audience::REQUEST];
    words.extend(outputs.stdout.then_some(audience::STDOUT));
    words.extend(outputs.stderr.then_some(audience::STDERR));
    // A new socket has room. A refusing logger may have gone by now; its answer is readable all the
    // same.
    match sys::send_with_descriptors(connection.as_fd(), &words, &descriptors) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        Ok(_) | Err(_) => drop(descriptors),
    }
    match connection.read_u8().await? {
        audience::JOINED => Ok(connection),
        audience::FULL => Err(io::Error::other("too many at the same time")),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
