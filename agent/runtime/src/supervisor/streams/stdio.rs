//! Streams of a container: the supervisor's ends of them, and the container's own.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::log::{Lines, Stream};
use super::sink::nonblocking;
use super::terminal;
use crate::supervisor::{CONTAINERS, dev_null};
use crate::{Refusal, Stdin, protocol};

/// Socket that receives a container's terminal.
pub(in crate::supervisor) const CONSOLE: &str = "console.sock";

/// Read end of a container's output.
pub(in crate::supervisor) struct Pipe {
    pub(in crate::supervisor) fd: OwnedFd,
    pub(in crate::supervisor) stream: Stream,
    pub(in crate::supervisor) lines: Lines,
}

impl Pipe {
    pub(in crate::supervisor) fn new(fd: OwnedFd, stream: Stream) -> Self {
        Self {
            fd,
            stream,
            lines: Lines::new(stream),
        }
    }
}

/// Our ends of a container's streams.
pub(in crate::supervisor) enum Stdio {
    Pipes {
        outputs: [Pipe; 2],
        stdin: Option<OwnedFd>,
        once: bool,
    },
    /// Socket that receives the terminal's master, and whether clients may write to it.
    Terminal { console: UnixListener, stdin: bool },
}

/// The supervisor's ends of a container's streams.
pub(in crate::supervisor) struct Ours {
    pub(in crate::supervisor) outputs: Vec<Pipe>,
    pub(in crate::supervisor) stdin: Option<OwnedFd>,
    pub(in crate::supervisor) once: bool,
    pub(in crate::supervisor) terminal: Option<OwnedFd>,
}

/// Creates the streams of a container: our ends, and its standard input, output and error.
pub(in crate::supervisor) fn open(id: &str, wanted: protocol::Stdio) -> io::Result<(Stdio, [OwnedFd; 3])> {
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

pub(in crate::supervisor) fn pipe(stream: Stream) -> io::Result<(Pipe, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    let fd = OwnedFd::from(reader);
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((Pipe::new(fd, stream), writer.into()))
}

/// Error for a request without its descriptors, which agents of this version never send.
pub(in crate::supervisor) fn missing() -> Refusal {
    Refusal::Failed {
        doing: "take the streams".to_owned(),
        cause: "a descriptor is missing".to_owned(),
    }
}
