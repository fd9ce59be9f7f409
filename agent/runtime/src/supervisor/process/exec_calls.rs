//! Requests and exits of execs, and their leftover processes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::exec;
use crate::clock::monotonic;
use crate::protocol::Answer;
use crate::supervisor::dev_null;
use crate::supervisor::job::{self, Purpose, Ticket};
use crate::supervisor::state::{Execution, JOB_LIMIT, Kind, Supervisor};
use crate::supervisor::streams::log::Stream;
use crate::supervisor::streams::stdio::{missing, pipe};
use crate::{ExecSpec, Refusal, State, StreamSpec, Streams, sys};

/// Time to wait for an exec's output after its program has exited.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// Limit of kept output, in bytes.
const OUTPUT_LIMIT: usize = 16 << 10;
/// Limit of concurrent execs.
const EXECS: usize = 256;

/// Arguments of an exec that has started.
struct Began {
    output: Option<OwnedFd>,
    limit: usize,
    deadline: Duration,
    kind: Kind,
}

impl Supervisor {
    pub(in crate::supervisor) fn exec(&mut self, ticket: Ticket, id: &str, exec: &ExecSpec) -> Result<(), Refusal> {
        let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
        let (pipe, output) = pipe(Stream::Stdout).map_err(failed("make a pipe"))?;
        let stdin = dev_null().map_err(failed("open /dev/null"))?;
        let began = Began {
            output: Some(pipe.fd),
            limit: exec.output_limit.min(OUTPUT_LIMIT),
            deadline: monotonic() + exec.timeout,
            kind: Kind::Collected,
        };
        let streams = exec::Streams::Collected { stdin, output };
        self.begin_exec(ticket, id, streams, (&exec.argv, &exec.env), began)
    }

    /// Starts a program with streams of its client.
    pub(in crate::supervisor) fn stream(
        &mut self,
        ticket: Ticket,
        id: &str,
        spec: &StreamSpec,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let failed = |error: io::Error| Refusal::failed("open /dev/null", &error);
        let mut given = descriptors.into_iter();
        let streams = if spec.tty {
            exec::Streams::Terminal(given.next().ok_or_else(missing)?)
        } else {
            let mut take = |wanted: bool| {
                if wanted {
                    given.next().ok_or_else(missing)
                } else {
                    dev_null().map_err(failed)
                }
            };
            let Streams { stdin, stdout, stderr } = spec.streams;
            exec::Streams::Given([take(stdin)?, take(stdout)?, take(stderr)?])
        };
        let began = Began {
            output: None,
            limit: 0,
            deadline: Duration::MAX,
            kind: if spec.tty { Kind::Terminal } else { Kind::Streamed },
        };
        self.begin_exec(ticket, id, streams, (&spec.argv, &[]), began)
    }

    fn begin_exec(
        &mut self,
        ticket: Ticket,
        id: &str,
        streams: exec::Streams,
        (argv, env): (&[String], &[(String, String)]),
        began: Began,
    ) -> Result<(), Refusal> {
        let entry = self.find(id)?;
        if !matches!(entry.container.state, State::Running { .. }) {
            return Err(Refusal::wrong_state(&entry.container));
        }
        let pid = entry.pid;
        let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
        if self.execs.len() >= EXECS {
            return Err(Refusal::Failed {
                doing: "exec".to_owned(),
                cause: "too many at the same time".to_owned(),
            });
        }
        let key = self.key();
        let group = self.group.join(id);
        let exec_group = group.join(format!("exec-{key}"));
        let tracking = self.cgroups.open_tracking(&exec_group);
        let execution = exec::Execution {
            cgroups: &self.cgroups,
            group,
            exec_group: exec_group.clone(),
            directory: self.container_directory(id),
            users: self.users.as_ref(),
            init: sys::pidfd_open(pid).map_err(failed("open the container's process"))?,
            streams,
        };
        let patience = began.deadline.max(monotonic()).min(monotonic() + JOB_LIMIT) + JOB_LIMIT;
        let child = job::spawn(tracking.as_ref(), &self.connections(), |tracked| {
            exec::start(&execution, argv, env, tracked)
        });
        let child = child.map_err(failed("fork"))?;
        self.jobs.push(child.job(patience, Purpose::Exec(key)));
        let Began {
            output,
            limit,
            deadline,
            kind,
        } = began;
        self.execs.push(Execution {
            key,
            ticket,
            output,
            kept: Vec::new(),
            limit,
            truncated: false,
            deadline,
            timed_out: false,
            kind,
            pid: None,
            exit_code: None,
            group: exec_group,
        });
        Ok(())
    }

    /// Ends the stream or attachment of a client's request.
    pub(in crate::supervisor) fn leave(&mut self, client: u64, request: u64) {
        let ticket = Ticket { client, request };
        for exec in self.execs.iter_mut().filter(|exec| exec.ticket == ticket) {
            exec.deadline = Duration::ZERO;
        }
        for entry in &mut self.entries {
            entry.release(|own| own == ticket);
        }
    }

    pub(in crate::supervisor) fn exec_started(&mut self, key: u64, result: Result<i32, Refusal>) {
        let Some(index) = self.execs.iter().position(|exec| exec.key == key) else {
            return;
        };
        match result {
            Ok(pid) => {
                if let Some(exec) = self.execs.get_mut(index) {
                    exec.pid = Some(pid);
                }
                self.claim(pid);
            }
            Err(refusal) => {
                let exec = self.execs.swap_remove(index);
                drop(self.cgroups.kill(&exec.group, Duration::ZERO));
                self.stale.push(exec.group);
                self.reply(exec.ticket, Err(refusal));
            }
        }
    }

    /// Ends the execs of a client that has disconnected.
    pub(in crate::supervisor) fn abandon(&mut self, client: u64) {
        for exec in self.execs.iter_mut().filter(|exec| exec.ticket.client == client) {
            exec.deadline = Duration::ZERO;
        }
        for entry in &mut self.entries {
            entry.release(|own| own.client == client);
        }
    }

    pub(in crate::supervisor) fn exec_exited(&mut self, pid: i32, status: i32) -> bool {
        let Some(index) = self.execs.iter().position(|exec| exec.pid == Some(pid)) else {
            return false;
        };
        let Some(exec) = self.execs.get_mut(index) else {
            return false;
        };
        exec.pid = None;
        exec.exit_code = Some(if status < 0 { 128 - status } else { status });
        exec.deadline = monotonic() + DRAIN_LIMIT;
        match exec.kind {
            Kind::Collected => drop(self.cgroups.kill(&exec.group, Duration::ZERO)),
            // Processes that it leaves running stay, for example a server started from a shell.
            Kind::Streamed | Kind::Terminal => {}
        }
        true
    }

    pub(in crate::supervisor) fn finish_execs(&mut self, now: Duration) {
        let done = |exec: &Execution| exec.exit_code.is_some() && (exec.output.is_none() || exec.deadline <= now);
        while let Some(index) = self.execs.iter().position(done) {
            // Output written before the end may be unread still.
            self.collect(index);
            let exec = self.execs.swap_remove(index);
            self.stale.push(exec.group);
            let answer = Answer::Exec {
                exit_code: exec.exit_code.unwrap_or(-1),
                truncated: exec.truncated,
                timed_out: exec.timed_out,
            };
            self.reply_with(exec.ticket, Ok(answer), &exec.kept);
            let cgroups = &self.cgroups;
            self.stale.retain(|group| !cgroups.try_remove(group));
        }
    }
}
