//! The process that writes a container's log: this program again, started by the container's shim and ended by the end of the
//! container's output. It needs neither the agent nor containerd, so that both may be replaced under a running container.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::record::{self, Durability};
use crate::supervisor::log::{Lines, LogFile, Stream};

/// What the logger is to do, in the container's directory.
pub(super) const ORDER: &str = "logger.json";
/// The logger's pid, written before the container exists.
pub(super) const PID: &str = "logger.pid";
/// The hidden subcommand.
pub(crate) const COMMAND: &str = "log";
/// All but what a path is usually made of.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');
/// What is read at once.
const CHUNK: usize = 16 << 10;

/// `logger.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) log: PathBuf,
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
    lines: Lines,
}

/// Reads both outputs to their ends. The shim hands them over as descriptors 3 and 4, and waits for the end of descriptor 5.
///
/// A shim may hold an output open until the task is deleted. So the agent, which knows of the container's end, says SIGTERM:
/// what is there is written then, and that is all.
pub(crate) fn main(directory: Option<&OsStr>) -> ExitCode {
    match directory.map(|directory| serve(Path::new(directory))) {
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

fn serve(directory: &Path) -> io::Result<()> {
    let (stdout, stderr, ready) = (inherited(3)?, inherited(4)?, inherited(5)?);
    // Apart from the shim, so that what is sent to its group does not end the log.
    nix::unistd::setsid().ok();
    let mut terminate = SigSet::empty();
    terminate.add(Signal::SIGTERM);
    terminate.thread_set_mask()?;
    let signals = SignalFd::with_flags(&terminate, SfdFlags::SFD_CLOEXEC)?;
    let order: Order = record::read(&directory.join(ORDER))?.ok_or(io::ErrorKind::NotFound)?;
    let mut log = LogFile::open(&order.log)?;
    record::write(&directory.join(PID), &std::process::id(), Durability::Process)?;
    // A directory that goes with its container must not be held.
    nix::unistd::chdir("/")?;
    drop(ready);
    let mut outputs = Vec::new();
    for (source, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
        fcntl(&source, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        outputs.push(Output {
            source: Some(File::from(source)),
            lines: Lines::new(stream),
        });
    }
    let (mut buffer, mut records, mut ended) = (vec![0; CHUNK], Vec::new(), false);
    while outputs.iter().any(|output| output.source.is_some()) {
        if !ended {
            ended = wait(&outputs, &signals)?;
        }
        for output in &mut outputs {
            records.clear();
            output.take(&mut buffer, &mut records, ended);
            // A full or broken disk loses output, not the container.
            drop(log.write(&records));
        }
    }
    Ok(())
}

/// Waits for output; says whether the container has ended.
fn wait(outputs: &[Output], signals: &SignalFd) -> io::Result<bool> {
    let sources = outputs.iter().filter_map(|output| output.source.as_ref());
    let mut polled: Vec<PollFd<'_>> = sources
        .map(|source| PollFd::new(source.as_fd(), PollFlags::POLLIN))
        .collect();
    polled.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) => Ok(polled.last().is_some_and(|signals| signals.any() == Some(true))),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Output {
    /// Takes what is there; at the end, what is left of a line too. Once the container has ended, nothing more will come.
    fn take(&mut self, buffer: &mut [u8], records: &mut Vec<u8>, ended: bool) {
        let Some(source) = &mut self.source else { return };
        match source.read(buffer) {
            Ok(length) if length > 0 => {
                self.lines
                    .push(now(), buffer.get(..length).unwrap_or_default(), records);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ended => {}
            Ok(_) | Err(_) => {
                self.lines.finish(now(), records);
                self.source = None;
            }
        }
    }
}

/// Tells a container's logger that the container has ended; its process is gone when the log is complete.
pub(super) fn finish(directory: &Path) -> Option<OwnedFd> {
    let process = process(directory)?;
    let told = crate::sys::pidfd_send_signal(process.as_fd(), Signal::SIGTERM as i32);
    told.is_ok().then_some(process)
}

fn process(directory: &Path) -> Option<OwnedFd> {
    let pid: u32 = record::read(&directory.join(PID)).ok()??;
    let pid = i32::try_from(pid).ok()?;
    let process = crate::sys::pidfd_open(pid).ok()?;
    // A later process with its pid is not waited for.
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let own = line.split(|byte| *byte == 0).nth(1) == Some(COMMAND.as_bytes());
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
