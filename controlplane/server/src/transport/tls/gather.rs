//! Writes of one connection, together.
//!
//! Many streams share an HTTP/2 connection. When one change is sent to many watchers, each of their
//! tasks writes a few hundred bytes, and the connection would be flushed after each: a record, a
//! system call and a packet for every one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are held at most: some full TLS records.
const MOST: usize = 64 << 10;

/// Stream that lets every ready task run once before a flush, so that their data are sent together.
pub(super) struct Gather<T> {
    inner: T,
    gathers: bool,
    held: Vec<u8>,
    /// Bytes of `held` that are written.
    written: usize,
    /// The other tasks had their turn.
    waited: bool,
}

impl<T: AsyncWrite + Unpin> Gather<T> {
    /// Wraps a stream; without `gathers`, for an unshared connection, it passes everything through.
    pub(super) fn new(inner: T, gathers: bool) -> Self {
        Self {
            inner,
            gathers,
            held: Vec::new(),
            written: 0,
            waited: false,
        }
    }

    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.held.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        // An idle connection holds nothing.
        self.held = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.gathers && self.held.len() + length > MOST {
            ready!(self.poll_drain(context))?;
        }
        if !self.gathers || length > MOST {
            return Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        }
        self.held.reserve(length);
        for part in parts {
            self.held.extend_from_slice(part);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        self.gathers || self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() && !self.waited {
            self.waited = true;
            // A task that wakes itself comes last.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_drain(context))?;
        self.waited = false;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

    use super::{Gather, MOST};

    #[tokio::test]
    async fn what_others_write_meanwhile_goes_along() {
        let (inner, mut peer) = tokio::io::duplex(4 * MOST);
        let mut gather = pin!(Gather::new(inner, true));
        let mut context = Context::from_waker(Waker::noop());
        gather.write_all(b"one").await.unwrap();
        assert!(gather.as_mut().poll_flush(&mut context).is_pending());
        gather.write_all(b"two").await.unwrap();
        let mut seen = [0; 16];
        assert!(
            pin!(peer.read(&mut seen)).poll(&mut context).is_pending(),
            "nothing is sent yet"
        );
        assert!(matches!(gather.as_mut().poll_flush(&mut context), Poll::Ready(Ok(()))));
        let count = peer.read(&mut seen).await.unwrap();
        assert_eq!(seen.get(..count), Some(&b"onetwo"[..]));
        // And again from the beginning.
        gather.write_all(b"three").await.unwrap();
        gather.flush().await.unwrap();
        let count = peer.read(&mut seen).await.unwrap();
        assert_eq!(seen.get(..count), Some(&b"three"[..]));
    }

    #[tokio::test]
    async fn nothing_is_lost_when_the_peer_is_slow_and_much_is_written() {
        let (inner, mut peer) = tokio::io::duplex(1000);
        let sent: Vec<u8> = (0..5 * MOST)
            .map(|number| u8::try_from(number % 251).unwrap())
            .collect();
        let mut received = Vec::new();
        let write = async {
            let mut gather = Gather::new(inner, true);
            for part in sent.chunks(MOST / 3) {
                gather.write_all(part).await.unwrap();
            }
            gather.write_all(&sent).await.unwrap();
            gather.shutdown().await.unwrap();
        };
        let ((), read) = tokio::join!(write, peer.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, [sent.clone(), sent].concat());
    }

    #[tokio::test]
    async fn one_that_does_not_gather_writes_at_once() {
        let (inner, mut peer) = tokio::io::duplex(64);
        let mut gather = Gather::new(inner, false);
        gather.write_all(b"one").await.unwrap();
        let mut seen = [0; 3];
        peer.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"one");
    }
}
