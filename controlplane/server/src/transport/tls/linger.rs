//! Lingering close of a connection whose client may still be writing.
//!
//! A request can be answered before its body has arrived: one that is too large or not allowed.
//! Closing a socket with unread bytes resets the connection, and the client may lose the answer
//! that was on its way.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client that sends nothing for this time is assumed to have read the answer (nginx's
/// `lingering_timeout`).
const SILENCE: Duration = Duration::from_secs(5);
/// Total time for which a connection lingers.
const LONGEST: Duration = Duration::from_secs(10);

/// A stream that is lent to the library: its socket comes back when the library drops it.
pub(super) struct Lent {
    /// `Some` until it is dropped.
    stream: Option<TlsStream<TcpStream>>,
    returned: Returned,
}

/// Slot into which the socket is returned.
#[derive(Clone, Default)]
pub(super) struct Returned {
    socket: Arc<Mutex<Option<TcpStream>>>,
}

impl Lent {
    pub(super) fn new(stream: TlsStream<TcpStream>, returned: Returned) -> Self {
        Self {
            stream: Some(stream),
            returned,
        }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TlsStream<TcpStream>>> {
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let socket = self.stream.take().map(|stream| stream.into_inner().0);
        *self.returned.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    }
}

impl Returned {
    /// Shuts down the write side, and reads until the client has closed its side too, or is silent.
    pub(super) async fn linger(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut socket) = socket else { return };
        let rest = async {
            socket.shutdown().await?;
            let mut unread = vec![0; 16 << 10];
            while tokio::time::timeout(SILENCE, socket.read(&mut unread)).await?? > 0 {}
            io::Result::Ok(())
        };
        // However it ends, the connection is over.
        drop(tokio::time::timeout(LONGEST, rest).await);
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
