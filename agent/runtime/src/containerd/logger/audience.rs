//! Clients attached to a container, as its logger serves them: each has a connection, over which
//! its pipes were passed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::supervisor::streams::log::Stream;
use crate::supervisor::streams::sink::Sinks;
use crate::sys;

/// Socket in the container's directory.
pub(in crate::containerd) const SOCKET: &str = "attach";
/// Limit of clients of one container.
const CLIENTS: usize = 16;
/// First byte of a request; a letter follows for each descriptor that is sent with it.
pub(in crate::containerd) const REQUEST: u8 = b'a';
pub(in crate::containerd) const STDOUT: u8 = b'1';
pub(in crate::containerd) const STDERR: u8 = b'2';
/// Answer: the client gets all output from now on ([`JOINED`]), or there are too many clients
/// already.
pub(in crate::containerd) const JOINED: u8 = b'+';
pub(in crate::containerd) const FULL: u8 = b'-';

struct Client {
    connection: UnixStream,
    sinks: Sinks,
    joined: bool,
    gone: bool,
}

/// All clients of a container.
pub(in crate::containerd) struct Audience {
    listener: UnixListener,
    clients: Vec<Client>,
}

/// Events that a client is polled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::containerd) enum Wait {
    Read,
    Write,
}

impl Audience {
    /// Listens in the working directory, because a socket's path must be short.
    pub(in crate::containerd) fn open() -> io::Result<Self> {
        match std::fs::remove_file(SOCKET) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(Path::new(SOCKET))?;
        listener.set_nonblocking(true)?;
        let clients = Vec::new();
        Ok(Self { listener, clients })
    }

    /// True if a client still has pending output of this stream.
    pub(in crate::containerd) fn holds_up(&self, stream: Stream) -> bool {
        self.clients.iter().any(|client| client.sinks.hold_up(stream))
    }

    /// True if no client has pending output.
    pub(in crate::containerd) fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.sinks.idle())
    }

    pub(in crate::containerd) fn give(&mut self, stream: Stream, bytes: &[u8]) {
        for client in &mut self.clients {
            client.sinks.give(stream, bytes);
        }
    }

    /// Descriptors to poll.
    pub(in crate::containerd) fn sources(&self) -> Vec<(BorrowedFd<'_>, Wait)> {
        let mut all = vec![(self.listener.as_fd(), Wait::Read)];
        for client in &self.clients {
            all.push((client.connection.as_fd(), Wait::Read));
            all.extend(client.sinks.waiting().map(|fd| (fd, Wait::Write)));
        }
        all
    }

    /// Serves the clients without waiting. Clients that left make room first. `earlier` returns the
    /// output of a stream that new clients get first.
    pub(in crate::containerd) fn serve(&mut self, earlier: impl Fn(Stream) -> Vec<u8>) {
        self.attend(&earlier);
        self.admit();
        self.attend(&earlier);
    }

    fn attend(&mut self, earlier: &impl Fn(Stream) -> Vec<u8>) {
        for client in &mut self.clients {
            client.serve(earlier);
        }
        self.clients.retain(|client| !client.gone);
    }

    fn admit(&mut self) {
        while let Ok((mut connection, _)) = self.listener.accept() {
            if self.clients.len() >= CLIENTS {
                // The client may be gone.
                connection.write_all(&[FULL]).ok();
            } else if connection.set_nonblocking(true).is_ok() {
                let (sinks, joined, gone) = (Sinks::default(), false, false);
                self.clients.push(Client {
                    connection,
                    sinks,
                    joined,
                    gone,
                });
            }
        }
    }
}

impl Client {
    fn serve(&mut self, earlier: &impl Fn(Stream) -> Vec<u8>) {
        self.sinks.flush();
        if self.joined {
            // The client sends nothing more: readiness means end-of-file.
            let said = self.connection.read(&mut [0]);
            self.gone = !said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            return;
        }
        let mut words = [0; 4];
        match sys::receive_with_descriptors(self.connection.as_fd(), &mut words) {
            Ok((length, descriptors)) => {
                let words = words.get(..length).unwrap_or_default();
                self.joined = self.join(words, descriptors, earlier).is_ok();
                self.gone = !self.joined;
            }
            Err(error) => self.gone = error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn join(
        &mut self,
        words: &[u8],
        descriptors: Vec<OwnedFd>,
        earlier: &impl Fn(Stream) -> Vec<u8>,
    ) -> io::Result<()> {
        let Some((&REQUEST, streams)) = words.split_first() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        for (stream, fd) in streams.iter().zip(descriptors) {
            let stream = match *stream {
                STDOUT => Stream::Stdout,
                STDERR => Stream::Stderr,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            self.sinks.add(stream, fd)?;
            self.sinks.give(stream, &earlier(stream));
        }
        self.connection.write_all(&[JOINED])
    }
}
