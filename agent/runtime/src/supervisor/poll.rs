//! Event loop: waits for the kernel, the agent and the containers at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::Client;
use super::job::{Ticket, signals};
use super::state::{Entry, Supervisor};
use super::streams::attach;
use crate::clock::now;
use crate::sys;

/// Bytes read at once from a descriptor.
const CHUNK: usize = 16 << 10;
/// Limit of agents connected at once: the current one and, for a moment, its replacement.
const CLIENTS: usize = 8;
/// Chunks read from one container's output before others get their turn.
const TURN: usize = 4;

#[derive(Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Client(usize),
    Output(usize),
    Exec(usize),
    /// Job of this child.
    Report(i32),
    /// Client of a container: indices of container and client.
    Attached(usize, usize),
}

impl Supervisor {
    /// Descriptors that a child must not inherit: the agents' connections, those of attached
    /// clients, and the pipes of waiting children.
    pub(super) fn connections(&self) -> Vec<RawFd> {
        let clients = self.clients.iter().map(|client| client.stream.as_raw_fd());
        let attached = self.entries.iter().flat_map(|entry| &entry.attachments);
        clients
            .chain([self.listener.as_raw_fd()])
            .chain(attached.flat_map(attach::Attachment::descriptors))
            .chain(signals(&self.jobs))
            .collect()
    }

    /// Runs until the shutdown.
    pub(super) fn run(&mut self, agent: UnixStream) -> io::Result<()> {
        let key = self.key();
        self.clients.push(Client::new(key, agent)?);
        loop {
            let wait = self.tick();
            if self.ended {
                return self.farewell();
            }
            let ready = self.wait(wait)?;
            for source in ready {
                match source {
                    Source::Signals => self.reap()?,
                    Source::Listener => self.accept(),
                    Source::Client(index) => self.serve(index),
                    Source::Output(index) => {
                        if let Some(entry) = self.entries.get_mut(index) {
                            pump(entry, TURN);
                        }
                    }
                    Source::Exec(index) => self.collect(index),
                    Source::Report(pid) => self.heard(pid),
                    Source::Attached(index, client) => {
                        if let Some(entry) = self.entries.get_mut(index) {
                            entry.exchange(client);
                        }
                    }
                }
            }
            self.drop_broken();
        }
    }

    /// Returns the sources that are ready; those whose handling changes indices come last.
    fn wait(&self, wait: Option<std::time::Duration>) -> io::Result<Vec<Source>> {
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            sources.extend(
                entry
                    .outputs
                    .iter()
                    .filter(|pipe| !entry.held_up(pipe.stream))
                    .map(|pipe| (Source::Output(index), pipe.fd.as_fd(), PollFlags::POLLIN)),
            );
            for (client, own) in entry.attachments.iter().enumerate() {
                let source = Source::Attached(index, client);
                sources.extend(own.writes().map(|fd| (source, fd, PollFlags::POLLOUT)));
                sources.extend(own.reads().map(|fd| (source, fd, PollFlags::POLLIN)));
                let feed = entry.stdin.as_ref().filter(|_| own.feeds());
                sources.extend(feed.map(|fd| (source, fd.as_fd(), PollFlags::POLLOUT)));
            }
        }
        for (index, exec) in self.execs.iter().enumerate() {
            sources.extend(
                exec.output
                    .iter()
                    .map(|fd| (Source::Exec(index), fd.as_fd(), PollFlags::POLLIN)),
            );
        }
        for job in &self.jobs {
            let report = job.awaited();
            sources.extend(report.map(|fd| (Source::Report(job.pid), fd, PollFlags::POLLIN)));
        }
        for (index, client) in self.clients.iter().enumerate() {
            let writing = if client.outgoing.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::POLLOUT
            };
            sources.push((
                Source::Client(index),
                client.stream.as_fd(),
                PollFlags::POLLIN | writing,
            ));
        }
        sources.push((Source::Listener, self.listener.as_fd(), PollFlags::POLLIN));
        sources.push((Source::Signals, self.signals.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = sources.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
        let timeout = wait.map_or(PollTimeout::NONE, |wait| {
            // Rounded up, or the last millisecond would be spent spinning.
            PollTimeout::try_from(wait.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ok(sources
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| ready(fd))
            .map(|((source, _, _), _)| *source)
            .collect())
    }

    pub(super) fn reap(&mut self) -> io::Result<()> {
        while self.signals.read_signal()?.is_some() {}
        while let Some((pid, status)) = sys::reap()? {
            self.reaped(pid, status);
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        if self.clients.len() < CLIENTS {
            let key = self.key();
            if let Ok(client) = Client::new(key, stream) {
                self.clients.push(client);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        client.flush();
        let key = client.key;
        for (request, body, descriptors) in client.read() {
            let ticket = Ticket {
                client: key,
                request: request.id,
            };
            self.call(ticket, request.call, &body, descriptors);
        }
    }

    pub(super) fn collect(&mut self, index: usize) {
        let Some(exec) = self.execs.get_mut(index) else { return };
        let mut chunk = [0; 4096];
        for _ in 0..TURN {
            let Some(output) = &exec.output else { return };
            match nix::unistd::read(output, &mut chunk) {
                Ok(0) => exec.output = None,
                Ok(length) => {
                    let room = exec.limit.saturating_sub(exec.kept.len());
                    exec.truncated |= length > room;
                    exec.kept
                        .extend_from_slice(chunk.get(..length.min(room)).unwrap_or_default());
                }
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => return,
                Err(_) => exec.output = None,
            }
        }
    }

    fn drop_broken(&mut self) {
        let gone: Vec<u64> = self
            .clients
            .iter()
            .filter(|client| client.broken)
            .map(|client| client.key)
            .collect();
        self.clients.retain(|client| !client.broken);
        for key in gone {
            self.abandon(key);
        }
    }

    /// Sends the last answers: otherwise the agent would take the end of the connection for a
    /// crash.
    fn farewell(&mut self) -> io::Result<()> {
        for client in self.clients.iter_mut().filter(|client| !client.broken) {
            client.stream.set_nonblocking(false)?;
            client.flush();
        }
        Ok(())
    }
}

/// Writes at most so many chunks of each output to the log.
fn pump(entry: &mut Entry, chunks: usize) {
    let mut chunk = [0; CHUNK];
    let mut records = Vec::new();
    let (log, attachments) = (&mut entry.log, &mut entry.attachments);
    entry.outputs.retain_mut(|pipe| {
        for _ in 0..chunks {
            records.clear();
            let open = match nix::unistd::read(&pipe.fd, &mut chunk) {
                Ok(0) => false,
                Ok(length) => {
                    let bytes = chunk.get(..length).unwrap_or_default();
                    pipe.lines.push(now(), bytes, &mut records);
                    attach::copy(attachments, pipe.stream, bytes);
                    true
                }
                Err(nix::Error::EAGAIN) => return true,
                Err(nix::Error::EINTR) => true,
                Err(_) => false,
            };
            if !open {
                pipe.lines.finish(now(), &mut records);
            }
            // Records that cannot be written are lost; the container goes on.
            drop(log.write(&records));
            if !open {
                return false;
            }
        }
        true
    });
}

/// Reads the container's output from before its exit: at most the pipes' capacity.
pub(super) fn drain(entry: &mut Entry) {
    pump(entry, (1 << 20) / CHUNK);
}
