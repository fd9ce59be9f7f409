//! The agent's end of the socket to one supervisor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot, watch};

use crate::protocol::{self, Answer, Call, Message, Request};
use crate::{Error, Refusal, sys};

pub(super) type Reply = (Result<Answer, Refusal>, Vec<u8>);

/// Message to a supervisor: an encoded request, and descriptors that travel with its first bytes.
pub(super) struct Frame {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    closed: bool,
}

/// Connected supervisor. Calls may overlap.
pub(super) struct Connection {
    sandbox: String,
    frames: mpsc::Sender<Frame>,
    pending: Mutex<Pending>,
    /// Pidfd of the supervisor, to wait for it and to kill it.
    pub(super) process: OwnedFd,
    /// The supervisor's exit is expected.
    pub(super) leaving: AtomicBool,
    end: watch::Sender<bool>,
}

impl Connection {
    /// Also returns the frames for its writing task.
    pub(super) fn new(sandbox: String, process: OwnedFd) -> (Self, mpsc::Receiver<Frame>) {
        let (frames, outgoing) = mpsc::channel(16);
        // 0 is the answer to the configuration.
        let pending = Mutex::new(Pending {
            next: 1,
            ..Pending::default()
        });
        (
            Self {
                sandbox,
                frames,
                pending,
                process,
                leaving: AtomicBool::new(false),
                end: watch::Sender::new(false),
            },
            outgoing,
        )
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> Error {
        Error::SandboxLost(self.sandbox.clone())
    }

    /// Sends a request and waits for the answer and its body.
    pub(super) async fn call(&self, call: Call, body: &[u8]) -> Result<(Answer, Vec<u8>), Error> {
        let (_, waiting) = self.begin(call, body, Vec::new()).await?;
        self.outcome(waiting).await
    }

    /// Sends a request; the answer comes later, under the request's ID.
    pub(super) async fn begin(
        &self,
        call: Call,
        body: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(u64, oneshot::Receiver<Reply>), Error> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut pending = self.pending();
            if pending.closed {
                return Err(self.lost());
            }
            let id = pending.next;
            pending.next += 1;
            // Callers may have given up on a supervisor that does not answer.
            pending.waiting.retain(|_, sender| !sender.is_closed());
            pending.waiting.insert(id, sender);
            id
        };
        let encoded = protocol::encode(&Request { id, call }, body);
        let bytes = encoded.map_err(|error| Refusal::failed("encode the request", &error))?;
        // Written by a separate task, so that a canceled caller cannot leave a partial frame.
        let sent = self.frames.send(Frame { bytes, descriptors }).await;
        sent.map_err(|_closed| self.lost())?;
        Ok((id, receiver))
    }

    /// Waits for the answer to a request that was sent.
    pub(super) async fn outcome(&self, waiting: oneshot::Receiver<Reply>) -> Result<(Answer, Vec<u8>), Error> {
        let (result, body) = waiting.await.map_err(|_closed| self.lost())?;
        match result {
            Ok(answer) => Ok((answer, body)),
            Err(Refusal::RunsAsRoot) => Err(Error::RunsAsRoot),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Passes a reply to its caller, if that still waits.
    pub(super) fn answer(&self, id: u64, result: Result<Answer, Refusal>, body: Vec<u8>) {
        if let Some(sender) = self.pending().waiting.remove(&id) {
            drop(sender.send((result, body)));
        }
    }

    /// Fails every pending and later call.
    pub(super) fn close(&self) {
        let mut pending = self.pending();
        pending.closed = true;
        pending.waiting.clear();
        drop(pending);
        self.end.send_replace(true);
    }

    /// Waits for the supervisor's exit.
    pub(super) async fn closed(&self) {
        let mut end = self.end.subscribe();
        // The sender is owned by this object: this cannot fail.
        end.wait_for(|ended| *ended).await.ok();
    }
}

/// Writes frames until the connection or all its senders are gone.
pub(super) async fn write_frames(mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Frame>) {
    while let Some(Frame { bytes, descriptors }) = frames.recv().await {
        let sent = if descriptors.is_empty() {
            Ok(0)
        } else {
            let stream: &UnixStream = writer.as_ref();
            let send = || sys::send_with_descriptors(stream.as_fd(), &bytes, &descriptors);
            stream.async_io(Interest::WRITABLE, send).await
        };
        // The supervisor has its copies by now.
        drop(descriptors);
        let Ok(sent) = sent else { return };
        if writer.write_all(bytes.get(sent..).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}

/// Reads the next message.
pub(super) async fn receive(reader: &mut (impl AsyncReadExt + Unpin)) -> io::Result<(Message, Vec<u8>)> {
    let mut prefix = [0; protocol::PREFIX];
    reader.read_exact(&mut prefix).await?;
    let (head, body) = protocol::lengths(prefix)?;
    let mut frame = vec![0; head + body];
    reader.read_exact(&mut frame).await?;
    let body = frame.split_off(head);
    Ok((serde_json::from_slice(&frame)?, body))
}
