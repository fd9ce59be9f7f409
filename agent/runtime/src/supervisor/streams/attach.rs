//! Attachments: clients that share a running container's own streams.
//!
//! Output goes to the log and to every client; a client that does not read blocks the container,
//! like a reader at the other end of its pipe. Input goes from a client to the container.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::log::Stream;
use super::sink::{Sinks, nonblocking};
use super::stdio::missing;
use crate::supervisor::job::Ticket;
use crate::{Refusal, Streams};

/// Client that is attached to a container.
pub(in crate::supervisor) struct Attachment {
    pub(in crate::supervisor) ticket: Ticket,
    /// Input of the client, and the part of it that the container has not read yet.
    pub(super) stdin: Option<OwnedFd>,
    pub(super) typed: Vec<u8>,
    pub(super) sinks: Sinks,
    /// The attachment ends with the client's input.
    pub(super) typing: bool,
    pub(super) ended: bool,
}

impl Attachment {
    pub(super) fn new(ticket: Ticket, streams: Streams, descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let mut given = descriptors.into_iter();
        let mut take = |wanted: bool| {
            let taken = if wanted { given.next() } else { None };
            if let Some(fd) = &taken {
                nonblocking(fd).map_err(|error| Refusal::failed("take the streams", &error))?;
            }
            if wanted && taken.is_none() {
                return Err(missing());
            }
            Ok(taken)
        };
        let stdin = take(streams.stdin)?;
        let mut sinks = Sinks::default();
        for (stream, wanted) in [(Stream::Stdout, streams.stdout), (Stream::Stderr, streams.stderr)] {
            if let Some(fd) = take(wanted)? {
                sinks
                    .add(stream, fd)
                    .map_err(|error| Refusal::failed("take the streams", &error))?;
            }
        }
        let (typing, typed, ended) = (stdin.is_some(), Vec::new(), false);
        Ok(Self {
            ticket,
            stdin,
            typed,
            sinks,
            typing,
            ended,
        })
    }

    pub(in crate::supervisor) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.sinks
            .descriptors()
            .chain(self.stdin.iter().map(AsRawFd::as_raw_fd))
    }

    /// Ends the attachment: its client has gone.
    pub(in crate::supervisor) fn end(&mut self) {
        self.ended = true;
        self.sinks.clear();
        self.stdin = None;
    }

    /// Descriptors to poll for this client: for writing if output is pending, for reading
    /// otherwise.
    pub(in crate::supervisor) fn writes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sinks.waiting()
    }

    /// The client's input, unless earlier input is pending.
    pub(in crate::supervisor) fn reads(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| self.typed.is_empty()).map(AsFd::as_fd)
    }

    pub(in crate::supervisor) fn feeds(&self) -> bool {
        !self.typed.is_empty()
    }

    pub(super) fn flush(&mut self) {
        self.sinks.flush();
        self.ended |= self.sinks.is_empty() && self.stdin.is_none() && self.typed.is_empty();
    }
}

/// Copies a container's output to every client.
pub(in crate::supervisor) fn copy(attachments: &mut [Attachment], stream: Stream, bytes: &[u8]) {
    for own in attachments.iter_mut().filter(|own| !own.ended) {
        own.sinks.give(stream, bytes);
        own.flush();
    }
}
