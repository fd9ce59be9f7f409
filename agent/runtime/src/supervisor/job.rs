//! Forked children that do the heavy work, and their reports.

use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid};

use super::container::spec::PidNamespace;
use super::container::start::Starter;
use super::give_back_signals;
use super::streams::log::LogFile;
use super::streams::stdio::Stdio;
use crate::protocol::{self, Answer};
use crate::{Container, Limits, Refusal, sys};

/// Flags that test for a child's exit without waiting for it or reaping it.
pub(super) const LOOK: WaitPidFlag = WaitPidFlag::WEXITED
    .union(WaitPidFlag::WNOHANG)
    .union(WaitPidFlag::WNOWAIT);
/// Timeout of a killed child's exit.
const END_MILLISECONDS: u16 = 2000;

/// Request to answer, with its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) client: u64,
    pub(super) request: u64,
}

/// Our ends of a container's streams, and the connection that starts it.
pub(super) struct Ends {
    pub(super) streams: Stdio,
    pub(super) starter: Starter,
}

/// Container that a child has begun ahead of its request.
pub(super) struct Precreated {
    pub(super) id: String,
    /// Configuration of the container.
    pub(super) spec: Vec<u8>,
    pub(super) wanted: protocol::Stdio,
    pub(super) ends: Ends,
    pub(super) go: PipeWriter,
    /// The child was killed.
    pub(super) over: bool,
}

impl Precreated {
    /// Descriptors that end the child's wait, and the container's input.
    pub(super) fn signals(&self) -> Vec<RawFd> {
        let input = match &self.ends.streams {
            Stdio::Pipes { stdin, .. } => stdin.as_ref().map(AsRawFd::as_raw_fd),
            Stdio::Terminal { .. } => None,
        };
        [Some(self.go.as_raw_fd()), input].into_iter().flatten().collect()
    }

    /// True if the request matches this container.
    pub(super) fn is(&self, wanted: protocol::Stdio, pids: &PidNamespace, spec: &[u8]) -> bool {
        !self.over && !matches!(pids, PidNamespace::Shared(_)) && self.wanted == wanted && self.spec == spec
    }

    /// Lets the child continue: first when the network exists, then when its container is
    /// requested.
    pub(super) fn go_on(&mut self) {
        // A child that is gone is handled when it is reaped.
        self.go.write_all(&[0]).ok();
    }
}

/// Arguments to create a container again.
pub(super) struct Again {
    pub(super) spec: Vec<u8>,
    pub(super) wanted: protocol::Stdio,
    pub(super) pids: PidNamespace,
}

/// Purpose of a job.
pub(super) enum Purpose {
    Create {
        ticket: Ticket,
        container: Box<Container>,
        limits: Limits,
        own_pids: bool,
        log: LogFile,
        ends: Ends,
        /// Request that starts the container as soon as it is created.
        start: Option<Ticket>,
        /// Present if the creation may fail because volumes had no contents yet: then it is
        /// repeated.
        again: Option<Box<Again>>,
    },
    /// Container that was not requested yet.
    Precreated(Precreated),
    /// Exec with this key.
    Exec(u64),
    /// Removal; answers these requests with `answer`, unless the removal itself fails.
    Remove {
        tickets: Vec<Ticket>,
        answer: Result<Answer, Refusal>,
    },
    /// None any more: the child has reported this init process of a container, and is exiting.
    Over(i32),
}

/// Descriptors that end the wait of children, and the input of their containers: another child that
/// inherited them would keep them open.
pub(super) fn signals(jobs: &[Job]) -> Vec<RawFd> {
    let own = |job: &Job| match &job.purpose {
        Purpose::Precreated(precreated) => precreated.signals(),
        Purpose::Create { .. } | Purpose::Exec(_) | Purpose::Remove { .. } | Purpose::Over(_) => Vec::new(),
    };
    jobs.iter().flat_map(own).collect()
}

/// Running child with its purpose.
pub(super) struct Job {
    pub(super) pid: i32,
    report: OwnedFd,
    /// Bytes received of the report.
    heard: Option<Vec<u8>>,
    pub(super) purpose: Purpose,
    /// Time at which it is killed, on the monotonic clock.
    pub(super) deadline: Duration,
}

/// Child that was just forked.
pub(super) struct Child {
    pub(super) pid: i32,
    report: OwnedFd,
}

impl Child {
    pub(super) fn job(self, deadline: Duration, purpose: Purpose) -> Job {
        Job {
            pid: self.pid,
            report: self.report,
            heard: None,
            purpose,
            deadline,
        }
    }
}

/// Forks a child, into a v2 group where one is given, that runs `work` and reports its result;
/// `work` is told whether it is in that group. The report fits into a pipe, so the child never
/// waits.
///
/// `foreign` descriptors are closed in the child: it and the container that it makes would keep the
/// agent's connection open when the supervisor is gone.
pub(super) fn spawn(
    group: Option<&OwnedFd>,
    foreign: &[RawFd],
    work: impl FnOnce(bool) -> Result<i32, Refusal>,
) -> io::Result<Child> {
    spawn_lingering(group, foreign, work, || ())
}

/// As [`spawn`], for a child whose exit takes longer than its report: after a success, it runs
/// `last` after the report.
pub(super) fn spawn_lingering(
    group: Option<&OwnedFd>,
    foreign: &[RawFd],
    work: impl FnOnce(bool) -> Result<i32, Refusal>,
    last: impl FnOnce(),
) -> io::Result<Child> {
    let (reader, mut writer) = io::pipe()?;
    let reader = OwnedFd::from(reader);
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let (forked, inside) = sys::fork_into(group.map(AsFd::as_fd))?;
    match forked {
        ForkResult::Parent { child } => Ok(Child {
            pid: child.as_raw(),
            report: reader,
        }),
        ForkResult::Child => {
            for fd in foreign {
                // The supervisor's objects own it, and this fork never drops them.
                nix::unistd::close(*fd).ok();
            }
            let result = match give_back_signals() {
                Ok(()) => work(inside),
                Err(error) => Err(Refusal::failed("restore signals", &error)),
            };
            let report = serde_json::to_vec(&result).unwrap_or_default();
            let told = writer.write_all(&report);
            if result.is_ok() {
                last();
            }
            sys::exit_now(i32::from(told.is_err()))
        }
    }
}

impl Job {
    /// Changes the purpose of the child.
    pub(super) fn turned(self, deadline: Duration, turn: impl FnOnce(Purpose) -> Purpose) -> Self {
        let purpose = turn(self.purpose);
        Self {
            purpose,
            deadline,
            ..self
        }
    }

    /// Kills a child whose work is no longer needed and waits until it is gone; one that hangs in
    /// the kernel is left there. Returns whether it is gone.
    pub(super) fn end(&self) -> bool {
        let pid = Pid::from_raw(self.pid);
        // It was not reaped, so the PID is its own.
        let Ok(process) = sys::pidfd_open(self.pid) else {
            return false;
        };
        kill(pid, Signal::SIGKILL).ok();
        let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        while poll(&mut ended, END_MILLISECONDS) == Err(Errno::EINTR) {}
        matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
    }

    /// True if the child has ended; it is not reaped yet.
    pub(super) fn has_ended(&self) -> bool {
        waitid(Id::Pid(Pid::from_raw(self.pid)), LOOK).is_ok_and(|status| status != WaitStatus::StillAlive)
    }

    /// Descriptor of a report that is read before the child has ended: the kernel takes the child's
    /// mount namespace apart at its exit, which waits for other processors.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        let early = self.heard.is_none() && matches!(self.purpose, Purpose::Create { .. });
        early.then(|| self.report.as_fd())
    }

    /// Init process of the container that the child created, if reported. A failure is handled at
    /// the child's exit, when nothing of it is in the way of the cleanup.
    pub(super) fn made(&mut self) -> Option<i32> {
        self.result().ok()
    }

    /// Returns the report of the child, which is gone.
    pub(super) fn finish(mut self) -> (Purpose, Result<i32, Refusal>) {
        let result = self.result();
        (self.purpose, result)
    }

    fn result(&mut self) -> Result<i32, Refusal> {
        let report = self.report.as_fd();
        // The write end may live on in a container that has not been started, so read the available
        // bytes, not to the end.
        let heard = self.heard.get_or_insert_with(|| {
            let mut bytes = vec![0; 64 << 10];
            let length = nix::unistd::read(report, &mut bytes).unwrap_or(0);
            bytes.truncate(length);
            bytes
        });
        let vanished = || Refusal::Failed {
            doing: "wait for a child".to_owned(),
            cause: "it ended without a report".to_owned(),
        };
        serde_json::from_slice(heard).unwrap_or_else(|_| Err(vanished()))
    }
}
