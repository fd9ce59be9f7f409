//! Init process of a PID namespace shared by the containers of a pod. It depends on no other
//! process: it outlives the agent, and ends with its sandbox.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, setsid};
use serde::{Deserialize, Serialize};

use crate::embedded::Program;
use crate::supervisor::started;
use crate::sys;

/// Process, with its start time to tell it from a later one of the same PID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::containerd) struct Process {
    pub(in crate::containerd) pid: i32,
    /// Start time, in clock ticks since boot.
    started: u64,
}

impl Process {
    /// Runs this program again as the init process of a new PID namespace.
    pub(in crate::containerd) fn start(program: &Program) -> io::Result<Self> {
        let mut child = Command::new(program.path())
            .arg("pause")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut pid = [0; 4];
        let told = match &mut child.stdout {
            Some(stdout) => stdout.read_exact(&mut pid),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        child.wait()?;
        told?;
        let pid = i32::from_ne_bytes(pid);
        let started = started(&pid.to_string()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, started })
    }

    /// Opens its pidfd; `None` if it is gone.
    pub(in crate::containerd) fn open(&self) -> Option<OwnedFd> {
        let process = sys::pidfd_open(self.pid).ok()?;
        // Compared after the pidfd is open: the descriptor keeps referring to this process.
        (started(&self.pid.to_string()) == Some(self.started)).then_some(process)
    }

    pub(in crate::containerd) fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/pid", self.pid))
    }

    /// Kills it, and with it all processes of its namespace.
    pub(in crate::containerd) fn end(&self) {
        if let Some(process) = self.open() {
            // It may have exited meanwhile.
            drop(sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL));
        }
    }
}

/// Hidden subcommand: writes the PID of the namespace's init process to standard output, and leaves
/// it running. Must be called before the process has any other thread.
pub(crate) fn main() -> ExitCode {
    let made = unshare(CloneFlags::CLONE_NEWPID)
        .map_err(io::Error::from)
        .and_then(|()| sys::fork());
    match made {
        Ok(ForkResult::Parent { child }) => {
            let told = io::stdout().write_all(&child.as_raw().to_ne_bytes());
            match told.and_then(|()| io::stdout().flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Ok(ForkResult::Child) => {
            drop(wait_for_ever());
            sys::exit_now(1)
        }
        Err(_) => ExitCode::FAILURE,
    }
}

#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this ignores a signal")]
fn wait_for_ever() -> io::Result<()> {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::SA_NOCLDWAIT, SigSet::empty());
    // SAFETY: no handler is installed. Ignoring SIGCHLD makes the kernel reap.
    unsafe { sigaction(Signal::SIGCHLD, &ignore) }?;
    setsid()?;
    nix::unistd::chdir("/")?;
    nix::sys::prctl::set_dumpable(false)?;
    drop(fs::write("/proc/self/oom_score_adj", "-998"));
    let null = crate::supervisor::dev_null()?;
    nix::unistd::dup2_stdout(&null)?;
    sys::close_all()?;
    loop {
        nix::unistd::pause();
    }
}
