//! Creation of containers: the request, and what comes of the child that makes one.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

use nix::sys::signal::Signal;

use super::attach;
use super::confine::PidNamespace;
use super::create::{self, Creation};
use super::job::{self, Job, Purpose, Ticket};
use super::log::LogFile;
use super::state::{Entry, JOB_LIMIT, Supervisor};
use super::{FIRST, RECORD};
use crate::clock::monotonic;
use crate::protocol::{self, Answer};
use crate::record;
use crate::{Container, Limits, Refusal};

impl Supervisor {
    pub(super) fn create(
        &mut self,
        ticket: Ticket,
        container: Box<Container>,
        limits: Limits,
        pid_namespace: PidNamespace,
        wanted: protocol::Stdio,
        spec: &[u8],
    ) -> Result<(), Refusal> {
        let id = container.id.clone();
        let making = |job: &Job| matches!(&job.purpose, Purpose::Create { container, .. } if container.id == id);
        if self.find(&id).is_ok() || self.jobs.iter().any(making) {
            return Err(Refusal::ContainerExists(id));
        }
        let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
        let log = LogFile::open(&container.log_path).map_err(failed("open the log"))?;
        let (directory, group) = (self.container_directory(&id), self.group.join(&id));
        // Of what was made ahead, if it was and is still there.
        fs::rename(self.directory.join(FIRST), &directory)
            .or_else(|_| fs::create_dir(&directory))
            .map_err(failed("create the container's directory"))?;
        let (ours, [stdin, stdout, stderr]) = attach::stdio(&id, wanted).map_err(failed("make the streams"))?;
        let own_pids = pid_namespace == PidNamespace::Own;
        let leaf = create::leaf(&self.cgroups, &group);
        let tracking = self.cgroups.open_tracking(&leaf);
        let (grouped, mut told) = io::pipe().map_err(failed("make a pipe"))?;
        let foreign = [self.connections(), vec![told.as_raw_fd()]].concat();
        let creation = Creation {
            cgroups: &self.cgroups,
            group,
            grouped,
            directory,
            empty: &self.empty,
            pid_namespace,
            users: self.users.as_ref(),
            memory: self.memory.as_ref(),
            stdin,
            stdout,
            stderr,
            terminal: wanted.terminal,
        };
        let purpose = Purpose::Create {
            ticket,
            container,
            limits,
            own_pids,
            log,
            stdio: ours,
            start: None,
        };
        let job = job::spawn(
            purpose,
            monotonic() + JOB_LIMIT,
            tracking.as_ref(),
            &foreign,
            |tracked| create::create(creation, spec, tracked),
        );
        self.jobs.push(job.map_err(failed("fork"))?);
        // The child is at work meanwhile. It finds out what is missing, if something is.
        if self.cgroups.create(&leaf).is_ok() {
            told.write_all(&[0]).ok();
        }
        Ok(())
    }

    /// Whether a container that is to be started is still being made; it is started when it is there.
    pub(super) fn start_later(&mut self, ticket: Ticket, id: &str) -> bool {
        self.jobs.iter_mut().any(|job| match &mut job.purpose {
            Purpose::Create { container, start, .. } if container.id == id && start.is_none() => {
                *start = Some(ticket);
                true
            }
            Purpose::Create { .. } | Purpose::Exec(_) | Purpose::Remove { .. } | Purpose::Over(_) => false,
        })
    }

    pub(super) fn created(&mut self, purpose: Purpose, result: Result<i32, Refusal>) {
        let Purpose::Create {
            ticket,
            container,
            limits,
            own_pids,
            log,
            stdio,
            start,
        } = purpose
        else {
            return;
        };
        if !self.clients.iter().any(|client| client.key == ticket.client) {
            // The agent that asked is gone, and the next one may have looked before this came to be.
            return self.begin_removal(&container.id, Vec::new(), Ok(Answer::Done));
        }
        let made = result.and_then(|pid| {
            let ours = attach::ours(stdio).map_err(|error| Refusal::failed("take the container's terminal", &error))?;
            let path = self.container_directory(&container.id).join(RECORD);
            let recorded = record::write_roomy(&path, &container);
            recorded.map_err(|error| Refusal::failed("write the container's record", &error))?;
            Ok((pid, ours))
        });
        let (pid, ours) = match made {
            Ok(made) => made,
            Err(refusal) => {
                if let Some(start) = start {
                    self.reply(start, Err(Refusal::ContainerNotFound(container.id.clone())));
                }
                return self.begin_removal(&container.id, vec![ticket], Err(refusal));
            }
        };
        let id = container.id.clone();
        let entry = Entry {
            container: *container,
            limits,
            pid,
            own_pids,
            killed: false,
            outputs: ours.outputs,
            log,
            removal: Vec::new(),
            stdin: ours.stdin,
            once: ours.once,
            terminal: ours.terminal,
            attachments: Vec::new(),
        };
        let answer = Answer::Container(entry.container.clone());
        self.entries.push(entry);
        self.reply(ticket, Ok(answer));
        let ending = self.ending();
        if ending {
            // It came to be while everything was being killed.
            drop(self.signal(&id, Signal::SIGKILL as i32));
        }
        if let Some(start) = start {
            let started = if ending {
                Err(self.shutting_down())
            } else {
                self.start(&id).map(Answer::Container)
            };
            self.reply(start, started);
        }
    }
}
