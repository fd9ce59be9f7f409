//! The process that writes a container's log, and gives those who attached their copies: this program again, started by the
//! container's shim, or by the agent where the container has an input, and ended by the end of the container's output. It needs
//! neither the agent nor containerd, so that both may be replaced under a running container; and where it is killed itself, the agent
//! starts another.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::unistd::ForkResult;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Deserialize, Serialize};

use super::audience::{Audience, Wait};
use super::handed;
use crate::clock::{monotonic, now};
use crate::record;
use crate::supervisor::log::{FRESH, Lines, LogFile, Stream};
use crate::supervisor::sink::nonblocking;
use crate::{Stdin, sys};

/// What the logger is to do, in the container's directory.
pub(super) const ORDER: &str = "logger.json";
/// The logger's pid, written before the container exists.
pub(super) const PID: &str = "logger.pid";
/// The hidden subcommand.
pub(crate) const COMMAND: &str = "log";
/// The same in place of one that was killed.
pub(crate) const AGAIN: &str = "log-again";
/// All but what a path is usually made of.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');
/// What is read at once.
const CHUNK: usize = 16 << 10;

/// The pipes in the container's directory that its shim copies output to, where the container has an input: a shim that starts
/// the logger itself has no way to give the container one.
pub(super) const OUTPUTS: [&str; 2] = ["stdout", "stderr"];
/// The pipe that the shim takes the container's input from.
pub(super) const INPUT: &str = "stdin";
/// After the container's end its clients have so long to take the rest.
const LINGER: Duration = Duration::from_secs(10);
/// When the container goes, its logger has so long to do so too.
const FAREWELL: Duration = Duration::from_millis(500);
/// A logger whose pipes nobody has written to looks so often whether its container is still wanted, and for so long: the shim
/// has opened them by then.
const DOUBT: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(2));

/// `logger.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) log: PathBuf,
    /// The container's input. Its output comes through pipes where it has one without a terminal.
    #[serde(default)]
    pub(super) stdin: Stdin,
    #[serde(default)]
    pub(super) terminal: bool,
}

impl Order {
    pub(super) fn through_pipes(&self) -> bool {
        self.stdin != Stdin::Closed && !self.terminal
    }
}

/// Where a shim finds this logger, as the `stdout` of a task.
pub(super) fn address(program: &Path, directory: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let program = percent_encode(program.as_os_str().as_bytes(), PATH);
    let directory = percent_encode(directory.as_os_str().as_bytes(), NON_ALPHANUMERIC);
    format!("binary://{program}?{COMMAND}={directory}")
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
    /// The container has ended, as the agent says, at this time.
    ended: Option<Duration>,
    /// Nobody wants the rest any more.
    leaving: bool,
    /// When it began, with its container. None: it took the place of another one.
    began: Option<Duration>,
    /// Until when it is asked whether the container is still wanted.
    doubt: Option<Duration>,
}

/// Reads both outputs to their ends. The shim hands them over as descriptors 3 and 4, and waits for the end of descriptor 5; or
/// they come through pipes, and the agent waits until a process that it has started is gone.
///
/// A shim may hold an output open until the task is deleted. So the agent, which knows of the container's end, says SIGTERM:
/// what is there is written then, and that is all.
pub(crate) fn main(command: &OsStr, directory: Option<&OsStr>) -> ExitCode {
    match directory.map(|directory| serve(command, Path::new(directory))) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(_)) | None => ExitCode::FAILURE,
    }
}

#[expect(unsafe_code, reason = "descriptors that the shim opened for us become owned")]
fn inherited(fd: i32) -> io::Result<OwnedFd> {
    fs::symlink_metadata(format!("/proc/self/fd/{fd}"))?;
    // SAFETY: it is open; called once for each, and nobody else in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn serve(command: &OsStr, directory: &Path) -> io::Result<()> {
    let order: Order = record::read(&directory.join(ORDER))?.ok_or(io::ErrorKind::NotFound)?;
    if !order.through_pipes() && command == COMMAND {
        let (stdout, stderr, ready) = (inherited(3)?, inherited(4)?, inherited(5)?);
        handed::note(directory, [&stdout, &stderr])?;
        let mut logger = Logger::open(directory, &order, [stdout, stderr])?;
        logger.began = Some(monotonic());
        drop(ready);
        return logger.run(directory);
    }
    let (mut ready, told) = io::pipe()?;
    match sys::fork()? {
        ForkResult::Parent { .. } => {
            drop(told);
            // Without that byte the other one has failed.
            ready.read_exact(&mut [0])
        }
        ForkResult::Child => {
            drop(ready);
            let served = (|| {
                let sources = if order.through_pipes() {
                    open_pipes(directory)?
                } else {
                    handed::open_again(directory, order.terminal)?
                };
                let mut logger = Logger::open(directory, &order, sources)?;
                logger.began = (command == COMMAND).then(monotonic);
                logger.doubt = Some(monotonic() + DOUBT.1);
                (&told).write_all(b"r")?;
                drop(told);
                logger.run(directory)
            })();
            sys::exit_now(i32::from(served.is_err()))
        }
    }
}

fn open_pipes(directory: &Path) -> io::Result<[OwnedFd; 2]> {
    let [stdout, stderr] = OUTPUTS.map(|name| directory.join(name));
    // Readers do not wait for writers so; and no other read comes before a writer is there.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let open = |path: &Path| nix::fcntl::open(path, flags, Mode::empty());
    Ok([open(&stdout)?, open(&stderr)?])
}

impl Logger {
    fn open(directory: &Path, order: &Order, sources: [OwnedFd; 2]) -> io::Result<Self> {
        // Apart from the shim, so that what is sent to its group does not end the log.
        nix::unistd::setsid().ok();
        let mut terminate = SigSet::empty();
        terminate.add(Signal::SIGTERM);
        terminate.thread_set_mask()?;
        let signals = SignalFd::with_flags(&terminate, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let log = LogFile::open(&order.log)?;
        nix::unistd::chdir(directory)?;
        let audience = Audience::open()?;
        // A directory that goes with its container must not be held.
        nix::unistd::chdir("/")?;
        record::write(&directory.join(PID), &std::process::id())?;
        let [stdout, stderr] = sources;
        let output = |source: OwnedFd, stream| -> io::Result<Output> {
            nonblocking(&source)?;
            Ok(Output {
                source: Some(File::from(source)),
                stream,
                lines: Lines::new(stream),
            })
        };
        Ok(Self {
            outputs: [output(stdout, Stream::Stdout)?, output(stderr, Stream::Stderr)?],
            signals,
            log,
            audience,
            ended: None,
            leaving: false,
            began: None,
            doubt: None,
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

    /// Waits for anything to happen; says which outputs have something.
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
            // What is there is taken without waiting; then for the clients alone.
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

    /// The first signal says that the container has ended, the second that it goes.
    fn hear(&mut self) -> io::Result<()> {
        while self.signals.read_signal()?.is_some() {
            self.leaving = self.ended.is_some();
            self.ended.get_or_insert_with(monotonic);
        }
        Ok(())
    }
}

impl Output {
    /// Takes what is there; at the end, what is left of a line too. Once the container has ended, nothing more will come.
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

/// Starts the logger of a container whose output comes through pipes; it has opened them when this returns.
pub(super) fn start(program: &Path, directory: &Path) -> io::Result<()> {
    run(program, COMMAND, directory)
}

/// Starts another one for a container whose logger is gone.
pub(super) fn replace(program: &Path, directory: &Path) -> io::Result<()> {
    run(program, AGAIN, directory)
}

fn run(program: &Path, command: &str, directory: &Path) -> io::Result<()> {
    let status = Command::new(program)
        .arg(command)
        .arg(directory)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("it ended with {status}")))
}

/// Tells a container's logger that the container has ended; its process is gone when the log is complete.
pub(super) fn finish(directory: &Path) -> Option<OwnedFd> {
    let process = process(directory)?;
    let told = sys::pidfd_send_signal(process.as_fd(), Signal::SIGTERM as i32);
    told.is_ok().then_some(process)
}

/// Sees to it that a container that goes leaves no logger.
pub(super) fn dismiss(directory: &Path) {
    let Some(process) = finish(directory) else { return };
    let limit = PollTimeout::try_from(FAREWELL).unwrap_or(PollTimeout::ZERO);
    if poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], limit) != Ok(1) {
        // It may have ended just now.
        drop(sys::pidfd_send_signal(process.as_fd(), Signal::SIGKILL as i32));
    }
}

pub(super) fn process(directory: &Path) -> Option<OwnedFd> {
    let pid: u32 = record::read(&directory.join(PID)).ok()??;
    let pid = i32::try_from(pid).ok()?;
    let process = sys::pidfd_open(pid).ok()?;
    // A later process with its pid is not waited for.
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = line.split(|byte| *byte == 0).nth(1);
    let own = [COMMAND, AGAIN].map(|own| Some(own.as_bytes())).contains(&command);
    own.then_some(process)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::address;

    #[test]
    fn paths_survive_the_way_through_the_shim() {
        let address = address(Path::new("/opt/a b/skiff-agent"), Path::new("/var/x&y=z/%41"));
        assert_eq!(
            address,
            "binary:///opt/a%20b/skiff-agent?log=%2Fvar%2Fx%26y%3Dz%2F%2541"
        );
    }
}
