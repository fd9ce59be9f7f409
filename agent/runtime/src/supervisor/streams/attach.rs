//! Attachments: clients that share a running container's own streams.
//!
//! Output goes to the log and to every client; a client that does not read blocks the container,
//! like a reader at the other end of its pipe. Input goes from a client to the container.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::unistd::read;

use super::log::{FRESH, Stream};
use super::sink::{Sinks, nonblocking, put};
use super::terminal;
use crate::clock::now;
use crate::protocol::{self, Answer};
use crate::supervisor::job::Ticket;
use crate::supervisor::process::exec_calls::missing;
use crate::supervisor::state::{Entry, Pipe, Stdio, Supervisor, pipe};
use crate::supervisor::{CONTAINERS, dev_null};
use crate::{Refusal, Size, State, Stdin, Streams, sys};

/// Socket that receives a container's terminal.
pub(in crate::supervisor) const CONSOLE: &str = "console.sock";
/// Limit of clients of one container.
const ATTACHMENTS: usize = 16;
/// Bytes read from a client at once.
const INPUT: usize = 4096;

/// Client that is attached to a container.
pub(in crate::supervisor) struct Attachment {
    pub(in crate::supervisor) ticket: Ticket,
    /// Input of the client, and the part of it that the container has not read yet.
    stdin: Option<OwnedFd>,
    typed: Vec<u8>,
    sinks: Sinks,
    /// The attachment ends with the client's input.
    typing: bool,
    ended: bool,
}

/// The supervisor's ends of a container's streams.
pub(in crate::supervisor) struct Ours {
    pub(in crate::supervisor) outputs: Vec<Pipe>,
    pub(in crate::supervisor) stdin: Option<OwnedFd>,
    pub(in crate::supervisor) once: bool,
    pub(in crate::supervisor) terminal: Option<OwnedFd>,
}

/// Creates the streams of a container: our ends, and its standard input, output and error.
pub(in crate::supervisor) fn stdio(id: &str, wanted: protocol::Stdio) -> io::Result<(Stdio, [OwnedFd; 3])> {
    if wanted.terminal {
        // Relative to the sandbox's directory, which is the working directory: a socket's path must
        // be short.
        let console = UnixListener::bind(Path::new(CONTAINERS).join(id).join(CONSOLE))?;
        console.set_nonblocking(true)?;
        let stdin = wanted.stdin != Stdin::Closed;
        return Ok((
            Stdio::Terminal { console, stdin },
            [dev_null()?, dev_null()?, dev_null()?],
        ));
    }
    let (stdout, out) = pipe(Stream::Stdout)?;
    let (stderr, err) = pipe(Stream::Stderr)?;
    let (stdin, input) = match wanted.stdin {
        Stdin::Closed => (None, dev_null()?),
        Stdin::Open | Stdin::Once => {
            let (reader, writer) = io::pipe()?;
            let writer = OwnedFd::from(writer);
            nonblocking(&writer)?;
            (Some(writer), reader.into())
        }
    };
    let ours = Stdio::Pipes {
        outputs: [stdout, stderr],
        stdin,
        once: wanted.stdin == Stdin::Once,
    };
    Ok((ours, [input, out, err]))
}

/// Returns our ends, once the container exists.
pub(in crate::supervisor) fn ours(made: Stdio) -> io::Result<Ours> {
    match made {
        Stdio::Pipes { outputs, stdin, once } => Ok(Ours {
            outputs: outputs.into(),
            stdin,
            once,
            terminal: None,
        }),
        Stdio::Terminal { console, stdin } => {
            let master = terminal::accept(&console)?;
            let output = Pipe::new(master.try_clone()?, Stream::Stdout);
            let stdin = stdin.then(|| master.try_clone()).transpose()?;
            Ok(Ours {
                outputs: vec![output],
                stdin,
                once: false,
                terminal: Some(master),
            })
        }
    }
}

impl Attachment {
    fn new(ticket: Ticket, streams: Streams, descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
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

    fn flush(&mut self) {
        self.sinks.flush();
        self.ended |= self.sinks.is_empty() && self.stdin.is_none() && self.typed.is_empty();
    }
}

impl Entry {
    /// True if a client still has pending output of this stream.
    pub(in crate::supervisor) fn held_up(&self, stream: Stream) -> bool {
        self.attachments.iter().any(|own| own.sinks.hold_up(stream))
    }

    /// Moves available data between the container and one client.
    pub(in crate::supervisor) fn exchange(&mut self, index: usize) {
        let Some(own) = self.attachments.get_mut(index) else {
            return;
        };
        own.flush();
        if own.typed.is_empty()
            && let Some(stdin) = &own.stdin
        {
            let mut chunk = [0; INPUT];
            match read(stdin, &mut chunk) {
                Ok(0) => own.stdin = None,
                Ok(length) => own.typed.extend_from_slice(chunk.get(..length).unwrap_or_default()),
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
                Err(_) => own.stdin = None,
            }
        }
        let taken = match &self.stdin {
            Some(stdin) => put(stdin, &mut own.typed).is_ok(),
            None => own.typed.is_empty(),
        };
        if !taken {
            // The container does not read any more.
            own.typed.clear();
            own.stdin = None;
            self.stdin = None;
            own.typing = false;
        }
        if own.typing && own.stdin.is_none() && own.typed.is_empty() {
            own.typing = false;
            if self.once {
                self.stdin = None;
            } else {
                own.end();
            }
        }
    }
}

impl Entry {
    /// Ends inputs whose client has left.
    pub(in crate::supervisor) fn release(&mut self, left: impl Fn(Ticket) -> bool) {
        for own in self.attachments.iter_mut().filter(|own| left(own.ticket)) {
            if own.typing && self.once {
                self.stdin = None;
            }
            own.end();
        }
    }
}

/// Copies a container's output to every client.
pub(in crate::supervisor) fn copy(attachments: &mut [Attachment], stream: Stream, bytes: &[u8]) {
    for own in attachments.iter_mut().filter(|own| !own.ended) {
        own.sinks.give(stream, bytes);
        own.flush();
    }
}

impl Supervisor {
    /// Attaches a client to a running container.
    pub(in crate::supervisor) fn attach(
        &mut self,
        ticket: Ticket,
        id: &str,
        streams: Streams,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let entry = self.find(id)?;
        let State::Running { started_at, .. } = entry.container.state else {
            return Err(Refusal::wrong_state(&entry.container));
        };
        if entry.attachments.len() >= ATTACHMENTS {
            return Err(Refusal::Failed {
                doing: "attach".to_owned(),
                cause: "too many at the same time".to_owned(),
            });
        }
        let mut own = Attachment::new(ticket, streams, descriptors)?;
        if entry.stdin.is_none() {
            own.stdin = None;
            own.typing = false;
        }
        if now().duration_since(started_at).is_ok_and(|age| age < FRESH) {
            for pipe in &entry.outputs {
                own.sinks.give(pipe.stream, &pipe.lines.earlier(&entry.log));
            }
        }
        entry.attachments.push(own);
        Ok(())
    }

    pub(in crate::supervisor) fn resize(&mut self, id: &str, size: Size) -> Result<(), Refusal> {
        let entry = self.find(id)?;
        match &entry.terminal {
            Some(terminal) => {
                sys::resize(terminal.as_fd(), size).map_err(|error| Refusal::failed("resize the terminal", &error))
            }
            None => Ok(()),
        }
    }

    /// Answers clients whose container's output has ended, or that have left.
    pub(in crate::supervisor) fn finish_attachments(&mut self) {
        let mut ended = Vec::new();
        for entry in &mut self.entries {
            let over = matches!(entry.container.state, State::Exited { .. });
            entry.attachments.retain(|own| {
                let done = own.ended || (over && own.sinks.idle());
                if done {
                    ended.push(own.ticket);
                }
                !done
            });
        }
        for ticket in ended {
            self.reply(ticket, Ok(Answer::Done));
        }
    }

    /// Drops the clients of a removed container, with their pending output.
    pub(in crate::supervisor) fn detach_all(&mut self, id: &str) {
        let Ok(entry) = self.find(id) else { return };
        let ended = std::mem::take(&mut entry.attachments);
        for own in ended {
            self.reply(own.ticket, Ok(Answer::Done));
        }
    }
}
