//! Execs: requests, ends and what their programs leave behind.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::dev_null;
use super::exec;
use super::job::{self, Purpose, Ticket};
use super::log::Stream;
use super::state::{Execution, JOB_LIMIT, Supervisor, pipe, wrong_state};
use crate::clock::monotonic;
use crate::protocol::Answer;
use crate::{ExecSpec, Refusal, State, sys};

/// Output of an exec is waited for so long after its program is gone.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// Most that is kept of an exec's output, in bytes.
const OUTPUT_LIMIT: usize = 16 << 10;
/// Execs at the same time.
const EXECS: usize = 64;

impl Supervisor {
    pub(super) fn exec(&mut self, ticket: Ticket, id: &str, exec: &ExecSpec) -> Result<(), Refusal> {
        let entry = self.find(id)?;
        if !matches!(entry.container.state, State::Running { .. }) {
            return Err(wrong_state(&entry.container));
        }
        let pid = entry.pid;
        let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
        if self.execs.len() >= EXECS {
            return Err(Refusal::Failed {
                doing: "exec".to_owned(),
                cause: "too many at the same time".to_owned(),
            });
        }
        let (pipe, output) = pipe(Stream::Stdout).map_err(failed("make a pipe"))?;
        let key = self.key();
        let group = self.group.join(id);
        let exec_group = group.join(format!("exec-{key}"));
        let tracking = self.cgroups.open_tracking(&exec_group);
        let execution = exec::Execution {
            cgroups: &self.cgroups,
            group,
            exec_group: exec_group.clone(),
            directory: self.container_directory(id),
            init: sys::pidfd_open(pid).map_err(failed("open the container's process"))?,
            stdin: dev_null().map_err(failed("open /dev/null"))?,
            output,
        };
        let deadline = monotonic() + exec.timeout;
        let job = job::spawn(
            Purpose::Exec(key),
            deadline + JOB_LIMIT,
            tracking.as_ref(),
            &self.connections(),
            |tracked| exec::start(&execution, exec, tracked),
        );
        self.jobs.push(job.map_err(failed("fork"))?);
        self.execs.push(Execution {
            key,
            ticket,
            output: Some(pipe.fd),
            kept: Vec::new(),
            limit: exec.output_limit.min(OUTPUT_LIMIT),
            truncated: false,
            deadline,
            timed_out: false,
            pid: None,
            exit_code: None,
            group: exec_group,
        });
        Ok(())
    }

    pub(super) fn exec_started(&mut self, key: u64, result: Result<i32, Refusal>) {
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

    /// A client is gone: nobody waits for its execs any more.
    pub(super) fn abandon(&mut self, client: u64) {
        for exec in self.execs.iter_mut().filter(|exec| exec.ticket.client == client) {
            exec.deadline = Duration::ZERO;
        }
    }

    pub(super) fn exec_exited(&mut self, pid: i32, status: i32) -> bool {
        let Some(index) = self.execs.iter().position(|exec| exec.pid == Some(pid)) else {
            return false;
        };
        if let Some(group) = self
            .execs
            .get(index)
            .and_then(|exec| exec.group.parent())
            .map(Path::to_owned)
        {
            self.settle_oom_kills(&group);
        }
        let Some(exec) = self.execs.get_mut(index) else {
            return false;
        };
        exec.pid = None;
        exec.exit_code = Some(if status < 0 { 128 - status } else { status });
        exec.deadline = monotonic() + DRAIN_LIMIT;
        drop(self.cgroups.kill(&exec.group, Duration::ZERO));
        true
    }

    pub(super) fn finish_execs(&mut self, now: Duration) {
        let done = |exec: &Execution| exec.exit_code.is_some() && (exec.output.is_none() || exec.deadline <= now);
        while let Some(index) = self.execs.iter().position(done) {
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
