//! Input from a client to a pipe.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

/// Writes into a pipe until the client's input ends, or the client goes.
pub(in crate::containerd) struct Writer {
    /// `None`: there is no input, or the client has ended it.
    pipe: Option<pipe::Sender>,
    /// Called once, at that point.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Writer {
    pub(in crate::containerd) fn new(pipe: Option<pipe::Sender>, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            pipe,
            end: Some(Box::new(end)),
        }
    }

    fn close(&mut self) {
        self.pipe = None;
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.pipe {
            Some(pipe) => Pin::new(pipe).poll_write(context, from),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}
