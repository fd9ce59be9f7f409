//! Sessions: programs and containers whose streams are the agent's.
//!
//! The supervisor gets the program's ends of the pipes and does not handle the data. A terminal is
//! created inside the container and its master is sent to the agent; that of a container stays with
//! the supervisor, which writes the log.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use nix::libc;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;

use super::connection::{Connection, Reply};
use super::{Shared, unexpected};
use crate::error::io_error;
use crate::protocol::{Answer, Call};
use crate::session::{Pipes, Session, Terminal};
use crate::{Error, Refusal, Size, StreamSpec, Streams, sys};

/// Timeout for a program to create its terminal.
const TERMINAL: Duration = Duration::from_secs(30);

/// Tells the supervisor when the caller no longer waits for the exit.
struct Begun {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    request: u64,
    over: bool,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (connection, request) = (Arc::clone(&self.connection), self.request);
        self.shared.background(async move {
            if let Err(error) = connection.call(Call::Leave(request), &[]).await {
                tracing::debug!(%error, "a session ends with its supervisor");
            }
        });
    }
}

impl Begun {
    async fn end(mut self, waiting: oneshot::Receiver<Reply>) -> Result<i32, Error> {
        let outcome = self.connection.outcome(waiting).await;
        self.over = true;
        match outcome? {
            (Answer::Exec { exit_code, .. }, _) => Ok(exit_code),
            (Answer::Done, _) => Ok(0),
            (Answer::Container(_) | Answer::Sandbox(_) | Answer::Ready { .. }, _) => Err(unexpected()),
        }
    }
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Refusal::failed(doing, &error).into()
}

impl Shared {
    async fn begin(
        self: &Arc<Self>,
        sandbox: &str,
        call: Call,
        descriptors: Vec<OwnedFd>,
    ) -> Result<BoxFuture<'static, Result<i32, Error>>, Error> {
        let connection = self.connection(sandbox)?;
        let (request, waiting) = connection.begin(call, &[], descriptors).await?;
        let begun = Begun {
            shared: Arc::clone(self),
            connection,
            request,
            over: false,
        };
        Ok(begun.end(waiting).boxed())
    }

    pub(super) async fn exec_stream(
        self: &Arc<Self>,
        sandbox: &str,
        container: String,
        spec: StreamSpec,
    ) -> Result<Session, Error> {
        if spec.tty {
            return self.exec_terminal(sandbox, container, spec).await;
        }
        let pipes = Pipes::make(spec.streams).map_err(failed("make pipes"))?;
        let end = self.begin(sandbox, Call::Stream(container, spec), pipes.theirs).await?;
        Ok(Session {
            stdin: pipes.stdin,
            stdout: pipes.stdout,
            stderr: pipes.stderr,
            terminal: None,
            end,
        })
    }

    async fn exec_terminal(
        self: &Arc<Self>,
        sandbox: &str,
        container: String,
        spec: StreamSpec,
    ) -> Result<Session, Error> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed("make a socket"))?;
        ours.set_nonblocking(true).map_err(failed("make a socket"))?;
        let console = UnixStream::from_std(ours).map_err(failed("make a socket"))?;
        let call = Call::Stream(container, spec);
        let end = self.begin(sandbox, call, vec![theirs.into()]).await?;
        let receive = console.async_io(Interest::READABLE, || {
            sys::receive_with_descriptors(console.as_fd(), &mut [0; 64])
        });
        // Not concurrently with the exit: a short program's exit arrives as early as its terminal.
        // A program without a terminal closes the socket.
        let received = tokio::time::timeout(TERMINAL, receive).await;
        let received = received.map_err(io::Error::from).flatten();
        let (_, descriptors) = received.map_err(failed("receive the terminal"))?;
        let Some(master) = descriptors.into_iter().next() else {
            // If the program cannot run, its end carries the error.
            return Err(end.await.err().unwrap_or_else(unexpected));
        };
        let (output, input) = both(&master).map_err(failed("use the terminal"))?;
        Ok(Session {
            stdin: Some(Box::pin(input)),
            stdout: Some(Box::pin(output)),
            stderr: None,
            terminal: Some(Box::new(Master(master))),
            end,
        })
    }

    pub(super) async fn attach(
        self: &Arc<Self>,
        sandbox: &str,
        container: String,
        streams: Streams,
    ) -> Result<Session, Error> {
        let pipes = Pipes::make(streams).map_err(io_error("make pipes for", Path::new(&container)))?;
        let terminal = ContainerTerminal {
            shared: Arc::clone(self),
            sandbox: sandbox.to_owned(),
            container: container.clone(),
        };
        let call = Call::Attach(container, streams);
        let end = self.begin(sandbox, call, pipes.theirs).await?;
        Ok(Session {
            stdin: pipes.stdin,
            stdout: pipes.stdout,
            stderr: pipes.stderr,
            terminal: Some(Box::new(terminal)),
            end,
        })
    }
}

fn both(master: &OwnedFd) -> io::Result<(FromTerminal, Sender)> {
    let output = FromTerminal(Receiver::from_owned_fd_unchecked(master.try_clone()?)?);
    Ok((output, Sender::from_owned_fd_unchecked(master.try_clone()?)?))
}

/// Output of a terminal: an error of its master means end-of-file.
struct FromTerminal(Receiver);

impl AsyncRead for FromTerminal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(context, buffer)) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

/// Terminal of a program that the agent started.
struct Master(OwnedFd);

impl Terminal for Master {
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>> {
        let resized = sys::resize(self.0.as_fd(), size).map_err(failed("resize the terminal"));
        futures::future::ready(resized).boxed()
    }
}

/// Terminal of a container.
struct ContainerTerminal {
    shared: Arc<Shared>,
    sandbox: String,
    container: String,
}

impl Terminal for ContainerTerminal {
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>> {
        let call = Call::Resize(self.container.clone(), size);
        async move { self.shared.call(&self.sandbox, call, &[]).await.map(drop) }.boxed()
    }
}
