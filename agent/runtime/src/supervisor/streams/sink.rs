//! Copies of a container's output for attached clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::write;

use super::log::Stream;

/// Client's end of one output, with the pending bytes.
struct Sink {
    stream: Stream,
    fd: OwnedFd,
    waiting: Vec<u8>,
}

/// Output streams of one client. Output is not read while one of them is blocked, so the pending
/// bytes are bounded by one read.
#[derive(Default)]
pub(crate) struct Sinks(Vec<Sink>);

impl Sinks {
    /// Adds a pipe.
    pub(crate) fn add(&mut self, stream: Stream, fd: OwnedFd) -> io::Result<()> {
        nonblocking(&fd)?;
        let waiting = Vec::new();
        self.0.push(Sink { stream, fd, waiting });
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if no output is pending.
    pub(crate) fn idle(&self) -> bool {
        self.0.iter().all(|sink| sink.waiting.is_empty())
    }

    /// True if the client still has pending output of this stream.
    pub(crate) fn hold_up(&self, stream: Stream) -> bool {
        self.0
            .iter()
            .any(|sink| sink.stream == stream && !sink.waiting.is_empty())
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.0.iter().map(|sink| sink.fd.as_raw_fd())
    }

    /// Descriptors to poll for writing.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.0.iter().filter(|sink| !sink.waiting.is_empty());
        waiting.map(|sink| sink.fd.as_fd())
    }

    /// Copies output to the client.
    pub(crate) fn give(&mut self, stream: Stream, bytes: &[u8]) {
        for sink in self.0.iter_mut().filter(|sink| sink.stream == stream) {
            sink.waiting.extend_from_slice(bytes);
        }
        self.flush();
    }

    /// Writes as much as possible; drops streams whose reader has gone.
    pub(crate) fn flush(&mut self) {
        self.0.retain_mut(|sink| put(&sink.fd, &mut sink.waiting).is_ok());
    }
}

pub(crate) fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Writes as much as possible.
pub(crate) fn put(fd: &OwnedFd, waiting: &mut Vec<u8>) -> io::Result<()> {
    while !waiting.is_empty() {
        match write(fd, waiting) {
            Ok(length) => drop(waiting.drain(..length)),
            Err(nix::Error::EAGAIN) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
