//! Removal of containers.

use nix::sys::signal::Signal;

use crate::clock::monotonic;
use crate::protocol::Answer;
use crate::supervisor::exits::remove_traces;
use crate::supervisor::job::{self, Job, Purpose, Ticket};
use crate::supervisor::state::{JOB_LIMIT, Supervisor};
use crate::{Refusal, State};

impl Supervisor {
    pub(in crate::supervisor) fn remove(&mut self, ticket: Ticket, id: &str) -> Option<Result<Answer, Refusal>> {
        let making = |job: &Job| matches!(&job.purpose, Purpose::Create { container, .. } if container.id == id);
        if self.jobs.iter().any(making) {
            return Some(Err(Refusal::WrongState {
                id: id.to_owned(),
                state: "being created".to_owned(),
            }));
        }
        drop(self.precreated(id, |_| false));
        let kill_first = match self.find(id) {
            Ok(entry) if !matches!(entry.container.state, State::Exited { .. }) => {
                entry.removal.push(ticket);
                true
            }
            Ok(_) => false,
            Err(_) => {
                let known = self.container_directory(id).exists() || self.cgroups.exists(&self.group.join(id));
                if !known {
                    return Some(Ok(Answer::Done));
                }
                false
            }
        };
        if kill_first {
            return self.signal(id, Signal::SIGKILL as i32).err().map(Err);
        }
        self.begin_removal(id, vec![ticket], Ok(Answer::Done));
        None
    }

    pub(in crate::supervisor) fn begin_removal(
        &mut self,
        id: &str,
        tickets: Vec<Ticket>,
        answer: Result<Answer, Refusal>,
    ) {
        self.detach_all(id);
        self.entries.retain(|entry| entry.container.id != id);
        let (directory, group) = (self.container_directory(id), self.group.join(id));
        if self.cgroups.holds_any(&group) {
            self.unthrottle(&group);
        }
        let cgroups = self.cgroups.clone();
        let purpose = Purpose::Remove {
            tickets: tickets.clone(),
            answer,
        };
        let child = job::spawn(None, &self.connections(), |_| {
            remove_traces(&cgroups, &group, &directory)
        });
        match child {
            Ok(child) => self.jobs.push(child.job(monotonic() + JOB_LIMIT, purpose)),
            Err(error) => {
                for ticket in tickets {
                    self.reply(ticket, Err(Refusal::failed("fork", &error)));
                }
            }
        }
    }
}
