//! Connections of agents: requests in, answers out.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::protocol::{self, Message, Request};
use crate::sys;

/// Bytes read at once from a connection.
const CHUNK: usize = 16 << 10;
/// Pending bytes after which a client that does not read is dropped.
const BACKLOG: usize = 2 << 20;
/// Limit of descriptors that wait for the rest of their requests.
const DESCRIPTORS: usize = 64;

/// Connected agent.
pub(super) struct Client {
    pub(super) key: u64,
    pub(super) stream: UnixStream,
    incoming: Vec<u8>,
    pub(super) outgoing: Vec<u8>,
    /// Descriptors of requests that are not complete yet.
    descriptors: VecDeque<OwnedFd>,
    pub(super) broken: bool,
}

/// Request with its body and its descriptors.
type Asked = (Request, Vec<u8>, Vec<OwnedFd>);

impl Client {
    pub(super) fn new(key: u64, stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            key,
            stream,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            descriptors: VecDeque::new(),
            broken: false,
        })
    }

    /// Sends a message, now or when the client reads.
    pub(super) fn send(&mut self, message: &Message, body: &[u8]) {
        match protocol::encode(message, body) {
            Ok(frame) if self.outgoing.len() + frame.len() <= BACKLOG => self.outgoing.extend_from_slice(&frame),
            Ok(_) | Err(_) => self.broken = true,
        }
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() && !self.broken {
            match self.stream.write(&self.outgoing) {
                Ok(length) => drop(self.outgoing.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        self.outgoing.shrink_to(4096);
    }

    pub(super) fn read(&mut self) -> Vec<Asked> {
        let mut chunk = vec![0; CHUNK];
        let mut requests = Vec::new();
        loop {
            match sys::receive_with_descriptors(self.stream.as_fd(), &mut chunk) {
                Ok((0, _)) => self.broken = true,
                Ok((length, descriptors)) => {
                    self.incoming.extend_from_slice(chunk.get(..length).unwrap_or_default());
                    self.descriptors.extend(descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return requests,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
            while let Some(request) = self.take() {
                requests.push(request);
            }
            if self.broken {
                return requests;
            }
        }
    }

    /// Takes the next complete request.
    fn take(&mut self) -> Option<Asked> {
        let Ok(taken) = protocol::take::<Request>(&mut self.incoming) else {
            self.broken = true;
            return None;
        };
        let (request, body) = taken?;
        let count = request.call.descriptors();
        if count > self.descriptors.len() {
            self.broken = true;
            return None;
        }
        let descriptors = self.descriptors.drain(..count).collect();
        // Descriptors arrive with the bytes of their request, and no request is longer than this
        // allows.
        self.broken |= self.descriptors.len() > DESCRIPTORS;
        Some((request, body, descriptors))
    }
}
