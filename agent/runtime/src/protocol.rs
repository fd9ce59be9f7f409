//! Protocol of the agent and a supervisor over the socket in the sandbox's directory.
//!
//! A frame is two big-endian `u32` lengths, a JSON head and a body. Large parts (container
//! configurations, output) travel in the body, so that a supervisor need not parse them.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Container, ExecSpec, Exit, Limits, Refusal, Sandbox, SandboxSpec, Size, Stdin, StreamSpec, Streams};

/// Limit of a head, in bytes.
const HEAD_LIMIT: usize = 1 << 20;
/// Limit of a body, in bytes.
const BODY_LIMIT: usize = 4 << 20;
/// Bytes of the two lengths.
pub(crate) const PREFIX: usize = 8;

/// First message to a new supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Configuration {
    pub(crate) spec: SandboxSpec,
    /// Root of all our cgroups, relative to each hierarchy.
    pub(crate) cgroup_root: String,
}

/// Limit of precreated containers of one pod.
pub(crate) const PRECREATED: usize = 4;

/// Messages to a new supervisor after its configuration and before requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Early {
    /// Announces a container that will most likely be created, with its streams; the body is its
    /// `ContainerSpec`.
    Foresee {
        container_id: String,
        stdio: Stdio,
        /// True if all sources of its mounts exist, though their contents may be missing.
        placed: bool,
    },
    /// The pod's network exists. Only requests follow.
    Connected,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) call: Call,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Inspect,
    /// Creates a container. The body is the `ContainerSpec`; its limits are set at the start.
    Create {
        container: Box<Container>,
        limits: Limits,
        /// Container whose PID namespace it joins.
        pid_of: Option<String>,
        stdio: Stdio,
    },
    Start(String),
    /// Sets the pod's limits from the next start of a container on.
    Limit(Limits),
    Signal(String, i32),
    Exec(String, ExecSpec),
    /// Starts a program. Descriptors: the program's end of each requested stream, in order; with a
    /// terminal instead a socket that receives its master.
    Stream(String, StreamSpec),
    /// Attaches to a container. Descriptors: a pipe end for each stream.
    Attach(String, Streams),
    /// Ends a stream or an attachment early, which the request of this ID began.
    Leave(u64),
    /// Sets the size of a container's terminal.
    Resize(String, Size),
    Remove(String),
    /// Kills everything, then exits.
    Shutdown,
}

/// Streams of a container, besides its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stdio {
    pub(crate) stdin: Stdin,
    pub(crate) terminal: bool,
}

impl Call {
    /// Number of descriptors that are sent with it.
    pub(crate) fn descriptors(&self) -> usize {
        let count =
            |streams: &Streams| usize::from(streams.stdin) + usize::from(streams.stdout) + usize::from(streams.stderr);
        match self {
            Self::Stream(_, spec) if spec.tty => 1,
            Self::Stream(_, StreamSpec { streams, .. }) | Self::Attach(_, streams) => count(streams),
            Self::Inspect
            | Self::Create { .. }
            | Self::Start(_)
            | Self::Limit(_)
            | Self::Signal(..)
            | Self::Exec(..)
            | Self::Leave(_)
            | Self::Resize(..)
            | Self::Remove(_)
            | Self::Shutdown => 0,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Reply { id: u64, result: Result<Answer, Refusal> },
    Exited { container_id: String, exit: Exit },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Container(Container),
    Sandbox(Sandbox),
    /// Answer to the configuration.
    Ready {
        sandbox: Sandbox,
        supervisor: i32,
    },
    /// Result of an exec; the body is the output.
    Exec {
        exit_code: i32,
        truncated: bool,
        timed_out: bool,
    },
}

fn oversized() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "frame over its limit")
}

/// Encodes one frame.
pub(crate) fn encode(head: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    if head.len() > HEAD_LIMIT || body.len() > BODY_LIMIT {
        return Err(oversized());
    }
    let mut frame = Vec::with_capacity(PREFIX + head.len() + body.len());
    for length in [head.len(), body.len()] {
        frame.extend_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_be_bytes());
    }
    frame.extend_from_slice(&head);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// Lengths of head and body, from a prefix.
pub(crate) fn lengths(prefix: [u8; PREFIX]) -> io::Result<(usize, usize)> {
    let both = u64::from_be_bytes(prefix);
    let length = |bits: u64| usize::try_from(bits & u64::from(u32::MAX)).map_err(io::Error::other);
    let (head, body) = (length(both >> 32)?, length(both)?);
    if head > HEAD_LIMIT || body > BODY_LIMIT {
        Err(oversized())
    } else {
        Ok((head, body))
    }
}

/// Takes one complete frame from the front of a buffer; `None` if it is incomplete.
pub(crate) fn take<Head: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<(Head, Vec<u8>)>> {
    let Some(prefix) = buffer.first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let (head, body) = lengths(*prefix)?;
    let Some(frame) = buffer.get(PREFIX..PREFIX + head + body) else {
        return Ok(None);
    };
    let (head_bytes, body_bytes) = frame.split_at(head);
    let parsed = serde_json::from_slice(head_bytes)?;
    let body_bytes = body_bytes.to_vec();
    buffer.drain(..PREFIX + head + body);
    if buffer.is_empty() {
        buffer.shrink_to(4096);
    }
    Ok(Some((parsed, body_bytes)))
}

#[cfg(test)]
mod tests {
    use super::{Call, Request, encode, take};

    #[test]
    fn frames_survive_any_cut_and_giants_are_refused() {
        let frame = encode(
            &Request {
                id: 7,
                call: Call::Start("a".to_owned()),
            },
            b"body",
        )
        .unwrap();
        let mut buffer = Vec::new();
        for byte in frame.iter().take(frame.len() - 1) {
            buffer.push(*byte);
            assert!(take::<Request>(&mut buffer).unwrap().is_none());
        }
        buffer.push(frame[frame.len() - 1]);
        let (request, body) = take::<Request>(&mut buffer).unwrap().unwrap();
        assert_eq!((request.id, body.as_slice(), buffer.len()), (7, b"body".as_slice(), 0));
        let mut giant = vec![0xff; 8];
        assert!(take::<Request>(&mut giant).is_err());
    }
}
