//! Requests of attached clients, and their input and output.

use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::read;

use super::attach::Attachment;
use super::log::{FRESH, Stream};
use super::sink::put;
use crate::clock::now;
use crate::protocol::Answer;
use crate::supervisor::job::Ticket;
use crate::supervisor::state::{Entry, Supervisor};
use crate::{Refusal, Size, State, Streams, sys};

/// Limit of clients of one container.
const ATTACHMENTS: usize = 16;
/// Bytes read from a client at once.
const INPUT: usize = 4096;

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
