//! Requests to create containers, and results of the children that do it.

use nix::sys::signal::Signal;

use super::environment::{Asked, PodEnvironment};
use super::spec::PidNamespace;
use crate::clock::monotonic;
use crate::files::record;
use crate::protocol::{self, Answer};
use crate::supervisor::RECORD;
use crate::supervisor::job::{Again, Ends, Job, Purpose, Ticket};
use crate::supervisor::state::{Entry, JOB_LIMIT, Supervisor};
use crate::supervisor::streams::log::LogFile;
use crate::supervisor::streams::stdio;
use crate::{Container, Limits, Refusal};

impl Supervisor {
    fn environment(&self) -> PodEnvironment<'_> {
        PodEnvironment {
            cgroups: &self.cgroups,
            group: &self.group,
            directory: &self.directory,
            mntns: &self.mntns,
            users: self.users.as_ref(),
            memory: self.memory.as_ref(),
        }
    }

    pub(in crate::supervisor) fn create(
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
        let opened = LogFile::open(&container.log_path);
        let log = opened.map_err(|error| Refusal::failed("open the log", &error))?;
        let own_pids = pid_namespace == PidNamespace::Own;
        let deadline = monotonic() + JOB_LIMIT;
        let purpose = |ends, again| Purpose::Create {
            ticket,
            container,
            limits,
            own_pids,
            log,
            ends,
            start: None,
            again,
        };
        let precreated = self.precreated(&id, |precreated| precreated.is(wanted, &pid_namespace, spec));
        let job = if let Some(waiting) = precreated {
            waiting.turned(deadline, |waited_for| match waited_for {
                Purpose::Precreated(mut precreated) => {
                    precreated.go_on();
                    let again = Again {
                        spec: precreated.spec,
                        wanted,
                        pids: pid_namespace,
                    };
                    purpose(precreated.ends, Some(Box::new(again)))
                }
                other @ (Purpose::Create { .. } | Purpose::Exec(_) | Purpose::Remove { .. } | Purpose::Over(_)) => {
                    other
                }
            })
        } else {
            let asked = Asked {
                id: &id,
                spec,
                stdio: wanted,
                pids: pid_namespace,
                sync_pipe: None,
            };
            let (child, ends) = self.environment().begin(asked, &self.connections())?;
            child.job(deadline, purpose(ends, None))
        };
        self.jobs.push(job);
        Ok(())
    }

    /// Returns whether the container is still being created; if so, it is started afterwards.
    pub(in crate::supervisor) fn start_later(&mut self, ticket: Ticket, id: &str) -> bool {
        self.jobs.iter_mut().any(|job| match &mut job.purpose {
            Purpose::Create { container, start, .. } if container.id == id && start.is_none() => {
                *start = Some(ticket);
                true
            }
            Purpose::Create { .. }
            | Purpose::Precreated(_)
            | Purpose::Exec(_)
            | Purpose::Remove { .. }
            | Purpose::Over(_) => false,
        })
    }

    /// Creates a container again if its creation ahead failed.
    fn create_again(
        &mut self,
        purpose: Purpose,
        result: Result<i32, Refusal>,
    ) -> Option<(Purpose, Result<i32, Refusal>)> {
        let Purpose::Create {
            ticket,
            container,
            limits,
            own_pids,
            log,
            start,
            again: Some(again),
            ..
        } = purpose
        else {
            return Some((purpose, result));
        };
        self.forget(&container.id);
        let asked = Asked {
            id: &container.id,
            spec: &again.spec,
            stdio: again.wanted,
            pids: again.pids,
            sync_pipe: None,
        };
        match self.environment().begin(asked, &self.connections()) {
            Ok((child, ends)) => {
                let purpose = Purpose::Create {
                    ticket,
                    container,
                    limits,
                    own_pids,
                    log,
                    ends,
                    start,
                    again: None,
                };
                self.jobs.push(child.job(monotonic() + JOB_LIMIT, purpose));
            }
            Err(refusal) => self.not_created(&container.id, ticket, start, refusal),
        }
        None
    }

    /// Removes a container that could not be created, and answers its requests.
    fn not_created(&mut self, id: &str, ticket: Ticket, start: Option<Ticket>, refusal: Refusal) {
        if let Some(start) = start {
            self.reply(start, Err(Refusal::ContainerNotFound(id.to_owned())));
        }
        self.begin_removal(id, vec![ticket], Err(refusal));
    }

    pub(in crate::supervisor) fn created(&mut self, purpose: Purpose, result: Result<i32, Refusal>) {
        let both = if result.is_err() && !self.ending() {
            self.create_again(purpose, result)
        } else {
            Some((purpose, result))
        };
        let Some((purpose, result)) = both else { return };
        let Purpose::Create {
            ticket,
            container,
            limits,
            own_pids,
            log,
            ends: Ends { streams, starter },
            start,
            again: _,
        } = purpose
        else {
            return;
        };
        if !self.clients.iter().any(|client| client.key == ticket.client) {
            // The requesting agent is gone, and the next one may have listed the containers before
            // this one existed.
            return self.begin_removal(&container.id, Vec::new(), Ok(Answer::Done));
        }
        let made = result.and_then(|pid| {
            let ours = stdio::ours(streams);
            let ours = ours.map_err(|error| Refusal::failed("take the container's terminal", &error))?;
            let path = self.container_directory(&container.id).join(RECORD);
            let recorded = record::write_roomy(&path, &container);
            recorded.map_err(|error| Refusal::failed("write the container's record", &error))?;
            Ok((pid, ours))
        });
        let (pid, ours) = match made {
            Ok(made) => made,
            Err(refusal) => return self.not_created(&container.id, ticket, start, refusal),
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
            starter: Some(starter),
            attachments: Vec::new(),
        };
        let answer = Answer::Container(entry.container.clone());
        self.entries.push(entry);
        self.reply(ticket, Ok(answer));
        let ending = self.ending();
        if ending {
            // It was created while everything was being killed.
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
