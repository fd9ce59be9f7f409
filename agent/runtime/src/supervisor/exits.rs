//! Ends: of children, deadlines and the supervisor itself.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, waitid};
use nix::unistd::Pid;

use super::job::{Job, LOOK, Precreated, Purpose, Ticket};
use super::state::{Entry, Execution, JOB_LIMIT, Kind, Supervisor};
use super::{CONTAINERS, RECORD, SOCKET};
use crate::cgroup::Cgroups;
use crate::clock::{monotonic, now};
use crate::files::record;
use crate::protocol::{Answer, Message};
use crate::{Exit, Limits, Refusal, State, sys};

/// Time after which processes that survive the shutdown are reported.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(4);
/// Interval at which a supervisor without an agent checks whether one could still find it.
const LONELINESS: Duration = Duration::from_secs(5);
/// Delay between reporting an exit and writing it to the disk: the receiver does not wait for the
/// disk, and containers that are removed at once are never written.
const SETTLE: Duration = Duration::from_millis(100);
/// Kept exits of processes that are not known yet.
const UNCLAIMED: usize = 256;
/// Exit code of a process whose own one is not known any more.
const UNKNOWN: i32 = 255;

impl Supervisor {
    pub(super) fn ending(&self) -> bool {
        self.shutdown.is_some()
    }

    /// Sends a signal. The init process of an entry is an unreaped child, so its PID is its own.
    pub(super) fn signal(&mut self, id: &str, signal: i32) -> Result<(), Refusal> {
        let kill = signal == libc::SIGKILL;
        let group = self.group.join(id);
        let entry = self.find(id)?;
        if matches!(entry.container.state, State::Exited { .. }) {
            return Ok(());
        }
        let own_pids = entry.own_pids;
        if kill {
            entry.killed = true;
            self.unthrottle(&group);
        }
        let entry = self.find(id)?;
        // nix does not know real-time signals.
        let process = sys::pidfd_open(entry.pid);
        let sent = process.and_then(|process| sys::pidfd_send_signal(process.as_fd(), signal));
        if kill && !own_pids {
            // Other processes may outlive the init process; survivors are killed again at its exit.
            drop(self.cgroups.kill(&group, Duration::ZERO));
        }
        sent.map_err(|error| Refusal::failed("send a signal", &error))
    }

    /// Lifts the CPU quota of the container and the pod, so that processes can die: under a quota,
    /// thousands of them would take minutes.
    pub(super) fn unthrottle(&self, group: &Path) {
        for group in [group, &group.join("main"), &self.group] {
            if self.cgroups.exists(group) {
                // They die without it, too, but more slowly.
                drop(self.cgroups.limit(group, &quota(Some(-1))));
            }
        }
    }

    /// Restores the pod's quota when no process of it is being killed any more.
    pub(super) fn throttle(&self) {
        let dying = |entry: &Entry| entry.killed && !matches!(entry.container.state, State::Exited { .. });
        let going = |job: &Job| matches!(job.purpose, Purpose::Remove { .. });
        let own = self.spec.limits.cpu_quota.filter(|quota| *quota > 0);
        if own.is_some() && !self.ending() && !self.entries.iter().any(dying) && !self.jobs.iter().any(going) {
            let limits = Limits {
                cpu_period: self.spec.limits.cpu_period,
                ..quota(own)
            };
            // The next start of a container sets it again.
            drop(self.cgroups.limit(&self.group, &limits));
        }
    }

    pub(super) fn begin_shutdown(&mut self, ticket: Option<Ticket>) {
        self.unthrottle(&self.group);
        self.shutdown = Some((ticket, monotonic() + SHUTDOWN_LIMIT));
        for exec in &mut self.execs {
            exec.deadline = Duration::ZERO;
        }
        let unasked = |job: &&mut Job| matches!(job.purpose, Purpose::Precreated(_));
        for job in self.jobs.iter_mut().filter(unasked) {
            job.deadline = Duration::ZERO;
        }
        for id in self
            .entries
            .iter()
            .map(|entry| entry.container.id.clone())
            .collect::<Vec<_>>()
        {
            // The container may have exited already.
            drop(self.signal(&id, libc::SIGKILL));
        }
        if let Some(pause) = self.pause.take() {
            pause.end();
        }
    }

    /// Handles the end of a child: its exit code, or minus the signal.
    pub(super) fn reaped(&mut self, pid: i32, status: i32) {
        if self.pause.as_ref().is_some_and(|pause| pause.pid == pid) {
            // All processes of the PID namespace die with it, and none can be started there again:
            // the pod needs another sandbox.
            self.pause = None;
            if !self.ending() {
                self.begin_shutdown(None);
            }
            return;
        }
        if let Some(index) = self.jobs.iter().position(|job| job.pid == pid) {
            let (purpose, result) = self.jobs.swap_remove(index).finish();
            match purpose {
                Purpose::Create { .. } => {
                    let made = result.as_ref().ok().copied();
                    self.created(purpose, result);
                    if let Some(made) = made {
                        self.claim(made);
                    }
                }
                // The process became a child of this one just now.
                Purpose::Over(made) => self.claim(made),
                // If it failed, the request for the container gets the cause.
                Purpose::Precreated(Precreated { id, .. }) => {
                    self.forget(&id);
                    self.throttle();
                }
                Purpose::Exec(key) => self.exec_started(key, result),
                Purpose::Remove { tickets, answer } => {
                    let answer = result.and(answer);
                    for ticket in tickets {
                        self.reply(ticket, answer.clone());
                    }
                    self.throttle();
                }
            }
        } else if !self.container_exited(pid, status)
            && !self.exec_exited(pid, status)
            && self.unclaimed.len() < UNCLAIMED
        {
            self.unclaimed.push((pid, status));
        }
        if self.jobs.is_empty() {
            self.unclaimed.clear();
        }
    }

    /// Handles the report of a child that may not have ended yet.
    pub(super) fn heard(&mut self, pid: i32) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.pid == pid) else {
            return;
        };
        if let Some(made) = job.made() {
            let purpose = std::mem::replace(&mut job.purpose, Purpose::Over(made));
            self.created(purpose, Ok(made));
        }
    }

    /// Handles the exit of a process that became known after it, if so.
    pub(super) fn claim(&mut self, pid: i32) {
        if let Some(index) = self.unclaimed.iter().position(|(unclaimed, _)| *unclaimed == pid) {
            let (pid, status) = self.unclaimed.swap_remove(index);
            self.reaped(pid, status);
        } else if waitid(Id::Pid(Pid::from_raw(pid)), LOOK) == Err(Errno::ECHILD) {
            // It has ended; its status was dropped from the full list.
            self.reaped(pid, UNKNOWN);
        }
    }

    pub(super) fn container_exited(&mut self, pid: i32, status: i32) -> bool {
        let live = |entry: &Entry| entry.pid == pid && !matches!(entry.container.state, State::Exited { .. });
        let Some(index) = self.entries.iter().position(live) else {
            return false;
        };
        let directory = self.directory.join(CONTAINERS);
        let Some(entry) = self.entries.get_mut(index) else {
            return false;
        };
        let id = entry.container.id.clone();
        let group = self.group.join(&id);
        if !entry.own_pids {
            drop(self.cgroups.kill(&group, Duration::ZERO));
        }
        super::poll::drain(entry);
        // Also if a child or an exec was killed, at any time, and the first process carried on.
        let oom_killed = self.cgroups.oom_kills(&group) > 0;
        let (code, signal) = if status < 0 {
            (128 - status, Some(-status))
        } else {
            (status, None)
        };
        let exit = Exit {
            code,
            signal,
            oom_killed,
            finished_at: now(),
        };
        let started_at = match entry.container.state {
            State::Running { started_at, .. } => Some(started_at),
            State::Created | State::Exited { .. } => None,
        };
        entry.container.state = State::Exited {
            exit: exit.clone(),
            started_at,
        };
        let tickets = std::mem::take(&mut entry.removal);
        let record = directory.join(&id).join(RECORD);
        // A failed write must not hide the exit from the agent.
        drop(record::write(&record, &entry.container));
        self.unsettled.push((record, monotonic() + SETTLE));
        let message = Message::Exited {
            container_id: id.clone(),
            exit,
        };
        self.throttle();
        for client in &mut self.clients {
            client.send(&message, &[]);
        }
        if !tickets.is_empty() {
            self.begin_removal(&id, tickets, Ok(Answer::Done));
        }
        true
    }

    /// Handles expired deadlines and returns the time until the next one.
    pub(super) fn tick(&mut self) -> Option<Duration> {
        let now = monotonic();
        let alone = self.clients.is_empty() && !self.ending();
        if alone && Path::new(SOCKET).try_exists().is_ok_and(|exists| !exists) {
            self.begin_shutdown(None);
        }
        for job in self.jobs.iter_mut().filter(|job| job.deadline <= now) {
            // The child has not been reaped, so the PID is its own; its end is an ordinary failure
            // of the job.
            kill(Pid::from_raw(job.pid), Signal::SIGKILL).ok();
            job.deadline = now + JOB_LIMIT;
            if let Purpose::Precreated(precreated) = &mut job.purpose {
                precreated.over = true;
            }
        }
        let late = |exec: &Execution| exec.deadline <= now && exec.pid.is_some();
        if self.execs.iter().any(late) {
            // Reap first: a child that ended in time is not late because this process was delayed.
            drop(self.reap());
        }
        for exec in self.execs.iter_mut().filter(|exec| late(exec)) {
            exec.timed_out = true;
            match (exec.kind, exec.pid) {
                // The others have lost their terminal: the kernel sends SIGHUP.
                (Kind::Terminal, Some(pid)) => drop(kill(Pid::from_raw(pid), Signal::SIGKILL)),
                (Kind::Collected | Kind::Streamed | Kind::Terminal, _) => {
                    drop(self.cgroups.kill(&exec.group, Duration::ZERO));
                }
            }
            exec.deadline = now + Duration::from_millis(10);
        }
        self.settle_records(now);
        self.finish_execs(now);
        self.finish_attachments();
        self.finish_shutdown(now);
        let deadlines = self.jobs.iter().map(|job| job.deadline);
        // An exec without a process ends with its job.
        let execs = self.execs.iter().filter(|exec| exec.pid.is_some());
        let deadlines = deadlines.chain(execs.map(|exec| exec.deadline.max(now + Duration::from_millis(1))));
        let deadlines = deadlines.chain(alone.then_some(now + LONELINESS));
        let deadlines = deadlines.chain(self.unsettled.iter().map(|(_, due)| *due));
        let next = deadlines.chain(self.shutdown.map(|(_, deadline)| deadline)).min()?;
        Some(next.saturating_sub(now))
    }

    fn settle_records(&mut self, now: Duration) {
        self.unsettled.retain(|(record, due)| {
            if *due <= now {
                // If the record is not found after a crash, the container counts as lost.
                drop(record::settle(record));
            }
            *due > now
        });
    }

    pub(super) fn finish_shutdown(&mut self, now: Duration) {
        let Some((ticket, deadline)) = self.shutdown else {
            return;
        };
        let live = |entry: &&Entry| !matches!(entry.container.state, State::Exited { .. });
        let left = self.entries.iter().filter(live).count();
        let result = if left == 0 && self.jobs.is_empty() && self.execs.is_empty() {
            Ok(Answer::Done)
        } else if now >= deadline {
            Err(Refusal::Failed {
                doing: "shut down".to_owned(),
                cause: format!("{left} container(s) do not die"),
            })
        } else {
            return;
        };
        match ticket {
            Some(ticket) => self.reply(ticket, result),
            // Best effort; orphans are found below the root of our cgroups.
            None => drop(self.cgroups.remove(&self.group)),
        }
        self.ended = true;
    }
}

fn quota(cpu_quota: Option<i64>) -> Limits {
    Limits {
        cpu_quota,
        ..Limits::default()
    }
}

/// Removes a container's remains: processes, cgroups, directory. Continues after failures.
pub(super) fn remove_traces(cgroups: &Cgroups, group: &Path, directory: &Path) -> Result<i32, Refusal> {
    let mut failures = Vec::new();
    if let Err(error) = cgroups.kill(group, Duration::from_secs(5)) {
        failures.push(format!("kill {}: {error}", group.display()));
    }
    failures.extend(cgroups.remove(group));
    if let Err(error) = trees::remove(directory) {
        failures.push(format!("remove {}: {error}", directory.display()));
    }
    if failures.is_empty() {
        return Ok(0);
    }
    Err(Refusal::Failed {
        doing: "remove container".to_owned(),
        cause: failures.join("; "),
    })
}
