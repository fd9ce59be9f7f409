//! Streams of a program that somebody talks to.

use std::fmt;
use std::pin::Pin;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Error, Size};

/// Where input goes. Shutting it down, or dropping it, ends the input.
pub type Input = Pin<Box<dyn AsyncWrite + Send>>;
/// Where output comes from, to its end.
pub type Output = Pin<Box<dyn AsyncRead + Send>>;

/// A terminal whose size can change.
pub trait Terminal: Send + Sync {
    /// Sets the size; programs in the foreground are told by SIGWINCH.
    fn resize(&self, size: Size) -> BoxFuture<'_, Result<(), Error>>;
}

/// What [`crate::Runtime::exec_stream`] and [`crate::Runtime::attach`] hand out.
pub struct Session {
    /// Standard input, where it was asked for and there is one.
    pub stdin: Option<Input>,
    /// Standard output, or the terminal's.
    pub stdout: Option<Output>,
    /// Standard error; nothing with a terminal.
    pub stderr: Option<Output>,
    /// The terminal, if there is one.
    pub terminal: Option<Box<dyn Terminal>>,
    /// The exit code of the program; 0 at the end of an attachment. Dropped early it kills the program with what it started (with
    /// a terminal the program alone; the others get SIGHUP), or ends the attachment.
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
