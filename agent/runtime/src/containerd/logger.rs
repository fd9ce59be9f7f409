//! Logger: the process that writes a container's log and copies it to attached clients. It is
//! forked from this program for each container, like supervisors, and exits at the end of the
//! container's output. It depends neither on the agent nor on containerd, so both may be replaced
//! under a running container; if it is killed itself, the agent has another one forked. [`audience`] keeps the attached clients.

pub(super) mod audience;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::unistd::ForkResult;
use serde::{Deserialize, Serialize};

use super::Shared;
use crate::clock::{monotonic, now};
use crate::embedded::Zygote;
use crate::files::record;
use crate::supervisor::dev_null;
use crate::supervisor::streams::log::{FRESH, Lines, LogFile, Stream};
use crate::supervisor::zygote;
use crate::{Stdin, sys};
use audience::{Audience, Wait};

/// Order for the logger, in the container's directory.
pub(super) const ORDER: &str = "logger.json";
/// PID of the logger, written before the container exists.
pub(super) const PID: &str = "logger.pid";
/// Hidden subcommand.
pub(crate) const COMMAND: &str = "log";
/// Bytes per read.
const CHUNK: usize = 16 << 10;

/// Pipes in the container's directory that its shim copies output to, and closes at the end.
pub(super) const OUTPUTS: [&str; 2] = ["stdout", "stderr"];
/// Pipe from which the shim reads the container's input.
pub(super) const INPUT: &str = "stdin";
/// Time for clients to read the rest after the container's exit.
const LINGER: Duration = Duration::from_secs(10);
/// Time for a logger to end after its container was removed.
const FAREWELL: Duration = Duration::from_millis(500);
/// Interval at which a logger whose pipes were never written to checks whether its container still
/// exists, and the total time of these checks: the shim has opened the pipes by then.
const DOUBT: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(2));

/// `logger.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) log: PathBuf,
    /// Mode of the container's input.
    #[serde(default)]
    pub(super) stdin: Stdin,
    #[serde(default)]
    pub(super) terminal: bool,
}

struct Output {
    source: Option<File>,
    stream: Stream,
    lines: Lines,
}

struct Logger {
    outputs: [Output; 2],
    signals: SignalFd,
    log: LogFile,
    audience: Audience,
    /// Time of the outputs' end, or of the agent's report that the container has exited.
    ended: Option<Duration>,
    /// True once the agent has reported the container's exit.
    reported: bool,
    /// True once the rest of the output is dropped.
    leaving: bool,
    /// Time of its start together with its container; `None` for a replacement.
    began: Option<Duration>,
    /// Time until which it checks whether the container still exists.
    doubt: Option<Duration>,
}

/// Forks a logger for each container directory that the agent sends over standard input, until the
/// agent is gone. Must be called before the process has any other thread. The forks share all
/// memory that they do not write.
pub(crate) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let orders = zygote::take_over()?;
    while let Some((directory, told, _)) = zygote::receive(&orders)? {
        // Without a child its pipe is closed here, and the agent notices.
        if let Ok(ForkResult::Child) = sys::fork() {
            drop(orders);
            let written = write(&directory, File::from(told));
            sys::exit_now(i32::from(written.is_err()))
        }
    }
    Ok(())
}

/// Writes a container's log to the end of its outputs; reports when it has opened them.
///
/// Processes left by a container may hold an output open. So the agent, which sees the container's
/// exit, sends SIGTERM after a while: the logger then writes the available output and ends.
fn write(directory: &Path, mut told: File) -> io::Result<()> {
    let order: Order = record::read(&directory.join(ORDER))?.ok_or(io::ErrorKind::NotFound)?;
    let mut logger = Logger::open(directory, &order)?;
    told.write_all(b"r")?;
    drop(told);
    logger.run(directory)
}

/// Opens the output pipes; a terminal has only one.
fn open_pipes(directory: &Path, terminal: bool) -> io::Result<[Option<OwnedFd>; 2]> {
    let [stdout, stderr] = OUTPUTS.map(|name| directory.join(name));
    // Open without waiting for writers; reads begin only when there is one.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let open = |path: &Path| nix::fcntl::open(path, flags, Mode::empty());
    let stderr = if terminal { None } else { Some(open(&stderr)?) };
    Ok([Some(open(&stdout)?), stderr])
}

impl Logger {
    fn open(directory: &Path, order: &Order) -> io::Result<Self> {
        // In a session of its own, so that signals to the agent's process group do not end the log.
        nix::unistd::setsid().ok();
        let [stdout, stderr] = open_pipes(directory, order.terminal)?;
        let mut terminate = SigSet::empty();
        terminate.add(Signal::SIGTERM);
        terminate.thread_set_mask()?;
        let signals = SignalFd::with_flags(&terminate, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let log = LogFile::open(&order.log)?;
        nix::unistd::chdir(directory)?;
        let audience = Audience::open()?;
        // Do not keep a directory in use that is removed with the container.
        nix::unistd::chdir("/")?;
        let pid = directory.join(PID);
        let began = (!pid.try_exists()?).then(monotonic);
        record::write(&pid, &std::process::id())?;
        let output = |source: Option<OwnedFd>, stream| Output {
            source: source.map(File::from),
            stream,
            lines: Lines::new(stream),
        };
        Ok(Self {
            outputs: [output(stdout, Stream::Stdout), output(stderr, Stream::Stderr)],
            signals,
            log,
            audience,
            ended: None,
            reported: false,
            leaving: false,
            began,
            doubt: Some(monotonic() + DOUBT.1),
        })
    }

    fn run(&mut self, directory: &Path) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            if !self.is_open() {
                let ended = *self.ended.get_or_insert_with(monotonic);
                if self.leaving || self.audience.is_done() || monotonic() > ended + LINGER {
                    return Ok(());
                }
            }
            let ready = self.wait()?;
            self.hear()?;
            self.serve_audience();
            for (output, ready) in self.outputs.iter_mut().zip(ready) {
                if ready || self.ended.is_some() {
                    self.doubt = None;
                    output.take(&mut buffer, &mut self.log, &mut self.audience, self.ended.is_some());
                }
            }
            if self.is_in_doubt() && !directory.join(ORDER).try_exists().unwrap_or(true) {
                return Ok(());
            }
        }
    }

    fn serve_audience(&mut self) {
        let is_fresh = self.began.is_some_and(|began| monotonic() < began + FRESH);
        let (outputs, log) = (&self.outputs, &self.log);
        self.audience.serve(|stream| {
            let output = outputs.iter().find(|output| is_fresh && output.stream == stream);
            output.map(|output| output.lines.earlier(log)).unwrap_or_default()
        });
    }

    fn is_open(&self) -> bool {
        self.outputs.iter().any(|output| output.source.is_some())
    }

    fn is_in_doubt(&self) -> bool {
        self.doubt.is_some_and(|until| until > monotonic())
    }

    /// Waits for any event; returns which outputs are readable.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let mut polled = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let mut places = [None; 2];
        for (output, place) in self.outputs.iter().zip(&mut places) {
            if let Some(source) = &output.source
                && (self.ended.is_some() || !self.audience.holds_up(output.stream))
            {
                *place = Some(polled.len());
                polled.push(PollFd::new(source.as_fd(), PollFlags::POLLIN));
            }
        }
        let audience = self.audience.sources().into_iter().map(|(fd, wait)| {
            let flags = match wait {
                Wait::Read => PollFlags::POLLIN,
                Wait::Write => PollFlags::POLLOUT,
            };
            PollFd::new(fd, flags)
        });
        polled.extend(audience);
        let limit = if self.ended.is_some() {
            // Takes available output without waiting; afterwards waits for the clients alone.
            Some(if self.is_open() { Duration::ZERO } else { LINGER })
        } else {
            self.is_in_doubt().then_some(DOUBT.0)
        };
        let limit = limit.and_then(|limit| PollTimeout::try_from(limit).ok());
        match poll(&mut polled, limit.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(places.map(|place| {
            let found = place.and_then(|place| polled.get(place));
            found.is_some_and(|source| source.any() == Some(true))
        }))
    }

    /// Handles SIGTERM: the first one reports the container's exit, the second one its removal.
    fn hear(&mut self) -> io::Result<()> {
        while self.signals.read_signal()?.is_some() {
            self.leaving = std::mem::replace(&mut self.reported, true);
            self.ended.get_or_insert_with(monotonic);
        }
        Ok(())
    }
}

impl Output {
    /// Takes available output; at the end also a partial line. After the container's exit nothing
    /// more is written.
    fn take(&mut self, buffer: &mut [u8], log: &mut LogFile, audience: &mut Audience, ended: bool) {
        let Some(source) = &mut self.source else { return };
        let mut records = Vec::new();
        match source.read(buffer) {
            Ok(length) if length > 0 => {
                let bytes = buffer.get(..length).unwrap_or_default();
                self.lines.push(now(), bytes, &mut records);
                audience.give(self.stream, bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ended => {}
            Ok(_) | Err(_) => {
                self.lines.finish(now(), &mut records);
                self.source = None;
            }
        }
        // A full or broken disk loses output, not the container.
        drop(log.write(&records));
    }
}

impl Shared {
    /// Has a container's logger forked; on return it has opened the container's pipes.
    pub(super) fn start_logger(&self, directory: &Path) -> io::Result<()> {
        let (mut ready, told) = io::pipe()?;
        let told = OwnedFd::from(told);
        self.loggers.order(directory, [&told, &dev_null()?], || {
            let place = (&self.cgroups, self.config.cgroup_root.as_str());
            Zygote::start(&self.program, &[OsString::from(COMMAND)], place)
        })?;
        drop(told);
        // Without that byte it has failed.
        ready.read_exact(&mut [0])
    }
}

/// Tells a logger that its container has exited; returns its descriptor, which shows when the log
/// is complete.
pub(super) fn finish(directory: &Path) -> Option<OwnedFd> {
    let process = process(directory)?;
    let told = sys::pidfd_send_signal(process.as_fd(), Signal::SIGTERM as i32);
    told.is_ok().then_some(process)
}

/// Ends the logger of a container that is removed.
pub(super) fn dismiss(directory: &Path) {
    let Some(process) = finish(directory) else { return };
    let limit = PollTimeout::try_from(FAREWELL).unwrap_or(PollTimeout::ZERO);
    if poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], limit) != Ok(1) {
        // The process may just have exited.
        drop(sys::pidfd_send_signal(process.as_fd(), Signal::SIGKILL as i32));
    }
}

pub(super) fn process(directory: &Path) -> Option<OwnedFd> {
    let pid: u32 = record::read(&directory.join(PID)).ok()??;
    let pid = i32::try_from(pid).ok()?;
    let process = sys::pidfd_open(pid).ok()?;
    // Skip a later process with the same PID.
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = line.split(|byte| *byte == 0).nth(1);
    (command == Some(COMMAND.as_bytes())).then_some(process)
}
