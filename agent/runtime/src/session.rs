//! Streams of an interactive program.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::{Error, Size, Streams};

/// Writer of the program's input. Dropping it ends the input.
pub type Input = Pin<Box<dyn AsyncWrite + Send>>;
/// Reader of the program's output, up to its end.
pub type Output = Pin<Box<dyn AsyncRead + Send>>;

/// Terminal that can be resized.
pub trait Terminal: Send + Sync {
    /// Sets the size; the foreground processes get SIGWINCH.
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>>;
}

/// Result of [`crate::Runtime::exec_stream`] and [`crate::Runtime::attach`].
pub struct Session {
    /// Standard input, if requested and available.
    pub stdin: Option<Input>,
    /// Standard output, or that of the terminal.
    pub stdout: Option<Output>,
    /// Standard error; `None` with a terminal.
    pub stderr: Option<Output>,
    /// Terminal, if there is one.
    pub terminal: Option<Box<dyn Terminal>>,
    /// Exit code of the program; 0 at the end of an attachment. Dropping it early kills the program
    /// with all that it started (with a terminal the program alone; the others get SIGHUP), or ends
    /// the attachment.
    pub end: BoxFuture<'static, Result<i32, Error>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Session")
            .field("stdin", &self.stdin.is_some())
            .field("stdout", &self.stdout.is_some())
            .field("stderr", &self.stderr.is_some())
            .field("terminal", &self.terminal.is_some())
            .finish_non_exhaustive()
    }
}

/// Pipes: our ends and the container's.
pub(crate) struct Pipes {
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
    /// Ends of the container, in the order of the streams.
    pub(crate) theirs: Vec<OwnedFd>,
}

impl Pipes {
    pub(crate) fn make(streams: Streams) -> io::Result<Self> {
        let mut pipes = Self {
            stdin: None,
            stdout: None,
            stderr: None,
            theirs: Vec::new(),
        };
        if streams.stdin {
            let (reader, writer) = io::pipe()?;
            pipes.stdin = Some(Box::pin(Sender::from_owned_fd(writer.into())?));
            pipes.theirs.push(reader.into());
        }
        for (wanted, end) in [(streams.stdout, &mut pipes.stdout), (streams.stderr, &mut pipes.stderr)] {
            if wanted {
                let (reader, writer) = io::pipe()?;
                *end = Some(Box::pin(Receiver::from_owned_fd(reader.into())?));
                pipes.theirs.push(writer.into());
            }
        }
        Ok(pipes)
    }
}
