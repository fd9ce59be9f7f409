//! Synchronization of the supervisor and a child that creates a container ahead of its request.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};

use crate::Refusal;
use crate::supervisor::rootfs::namespace::MountNamespace;

/// Number of bytes received once the network exists, and once the container is requested.
const CONNECTED: u8 = 1;
const ASKED: u8 = 2;

/// Pipe from the supervisor, and the namespace that is joined meanwhile.
pub(in crate::supervisor) struct SyncPipe {
    words: PipeReader,
    heard: Cell<u8>,
    /// Network namespace of the pod, joined when it exists; `None` for the machine's.
    netns: Option<PathBuf>,
    /// True if all sources of its mounts exist, though their contents may be missing.
    pub(super) placed: bool,
}

impl SyncPipe {
    pub(in crate::supervisor) fn new(words: PipeReader, netns: Option<PathBuf>, placed: bool) -> Self {
        Self {
            words,
            heard: Cell::new(0),
            netns,
            placed,
        }
    }

    /// Waits until the container is requested. Fails if the supervisor is gone or drops the
    /// container.
    pub(super) fn until_asked(&self) -> io::Result<()> {
        self.until(ASKED)
    }

    /// Waits for the pod's network, and joins it.
    pub(in crate::supervisor) fn connect(&self, mntns: &MountNamespace) -> Result<(), Refusal> {
        let there = self.until(CONNECTED).and_then(|()| {
            if self.is_alone()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(())
        });
        there.map_err(|error| Refusal::failed("wait for the pod's network", &error))?;
        let Some(netns) = &self.netns else { return Ok(()) };
        let joined = mntns.away(|| {
            let netns = File::open(netns)?;
            Ok::<_, io::Error>(setns(netns, CloneFlags::CLONE_NEWNET)?)
        });
        joined
            .flatten()
            .map_err(|error| Refusal::failed("join the network namespace", &error))
    }

    fn until(&self, words: u8) -> io::Result<()> {
        while self.heard.get() < words {
            (&self.words).read_exact(&mut [0])?;
            self.heard.set(self.heard.get() + 1);
        }
        Ok(())
    }

    /// True if the supervisor is gone. Bytes that it sent before stay readable.
    fn is_alone(&self) -> io::Result<bool> {
        let mut ends = [PollFd::new(self.words.as_fd(), PollFlags::POLLIN)];
        poll(&mut ends, PollTimeout::ZERO)?;
        let found = ends.first().and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        Ok(self.heard.get() < ASKED && found.contains(PollFlags::POLLHUP) && !found.contains(PollFlags::POLLIN))
    }
}
