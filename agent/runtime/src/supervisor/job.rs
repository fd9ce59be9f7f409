//! Forked children that do the heavy work, and how they report.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::ForkResult;

use super::give_back_signals;
use super::log::LogFile;
use super::state::Stdio;
use crate::protocol::Answer;
use crate::{Container, Limits, Refusal, sys};

/// Whom to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) client: u64,
    pub(super) request: u64,
}

/// What a job is for.
pub(super) enum Purpose {
    Create {
        ticket: Ticket,
        container: Box<Container>,
        limits: Limits,
        own_pids: bool,
        log: LogFile,
        stdio: Stdio,
    },
    /// The exec with this key.
    Exec(u64),
    /// Afterwards these are answered so, unless the removal itself failed.
    Remove {
        tickets: Vec<Ticket>,
        answer: Result<Answer, Refusal>,
    },
}

/// A child at work.
pub(super) struct Job {
    pub(super) pid: i32,
    report: OwnedFd,
    pub(super) purpose: Purpose,
    /// When it is killed, on the monotonic clock.
    pub(super) deadline: Duration,
}

/// Forks a child, into a v2 group where one is given, that does `work` and reports what came of it; `work` is told whether it
/// is in that group. The report fits into a pipe, so the child never waits.
///
/// `foreign` descriptors are closed in the child: it and the container that it makes would keep the agent's connection open
/// when the supervisor is gone.
pub(super) fn spawn(
    purpose: Purpose,
    deadline: Duration,
    group: Option<&OwnedFd>,
    foreign: &[RawFd],
    work: impl FnOnce(bool) -> Result<i32, Refusal>,
) -> io::Result<Job> {
    let (reader, mut writer) = io::pipe()?;
    let reader = OwnedFd::from(reader);
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let (forked, inside) = sys::fork_into(group.map(AsFd::as_fd))?;
    match forked {
        ForkResult::Parent { child } => Ok(Job {
            pid: child.as_raw(),
            report: reader,
            purpose,
            deadline,
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
            sys::exit_now(i32::from(told.is_err()))
        }
    }
}

impl Job {
    /// What the child, which is gone, reported.
    pub(super) fn finish(self) -> (Purpose, Result<i32, Refusal>) {
        // The writing end may live on in a container that has not been started, so this reads what is there, not to the end.
        let mut bytes = vec![0; 64 << 10];
        let length = std::fs::File::from(self.report).read(&mut bytes).unwrap_or(0);
        bytes.truncate(length);
        let vanished = || Refusal::Failed {
            doing: "wait for a child".to_owned(),
            cause: "it ended without a report".to_owned(),
        };
        let result = serde_json::from_slice(&bytes).unwrap_or_else(|_| Err(vanished()));
        (self.purpose, result)
    }
}
