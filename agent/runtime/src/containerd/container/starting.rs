//! Starting a created container, and determining whether it runs if containerd goes away during the
//! start.

use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::{GetRequest, StartRequest};
use containerd_client::types::v1::Status;
use tokio::time::Instant;

use super::creation;
use super::exec_fifo::{ExecFifo, Starting};
use crate::clock::now;
use crate::containerd::Shared;
use crate::containerd::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use crate::error::io_error;
use crate::{Container, Error, Refusal, State};

/// Interval of calls to a containerd that is away.
const PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    pub(in crate::containerd) async fn start(self: &Arc<Self>, sandbox: &str, id: &str) -> Result<Container, Error> {
        let (_, _guard) = self.turn(sandbox).await?;
        let container = self.container(sandbox, id)?;
        if container.state != State::Created {
            return Err(Refusal::wrong_state(&container).into());
        }
        let starting = self.begin_start(id);
        // On disk first: an exited container without this record never ran.
        let noted = self.records().begin(sandbox, id);
        let noted = noted.ok_or_else(|| Error::SandboxNotFound(sandbox.to_owned()))?;
        noted.map_err(io_error("write the record of", &self.directory(sandbox)))?;
        let pid = match self.start_and_keep(id, &starting).await {
            Err(error) if error.is_loss() => {
                self.end_unheard(sandbox, id, starting.fifo()).await;
                return Err(error);
            }
            told => told?,
        };
        let pid = i32::try_from(pid).map_err(|error| Refusal::failed("start containerd task", &error))?;
        failpoint::reach("start told");
        let started_at = now();
        let running = State::Running { pid, started_at };
        let state = running.clone();
        self.change(sandbox, |containers| {
            let Some(found) = containers.iter_mut().find(|known| known.id == id) else {
                return;
            };
            match &mut found.state {
                // It has exited already.
                State::Exited { started_at: since, .. } => *since = Some(started_at),
                State::Created | State::Running { .. } => found.state = state,
            }
        })?;
        self.watch_first(id, pid);
        self.watch_logger((sandbox, id), pid);
        Ok(Container {
            state: running,
            ..container
        })
    }

    /// Starts a task and preserves its exit. Returns its PID.
    async fn start_and_keep(&self, id: &str, starting: &Starting) -> Result<u32, Error> {
        let (mut kept, started) = tokio::join!(self.keep_end(id), self.start_task(id));
        let pid = match started {
            Err(error) if meaning(&error) == Meaning::Silent => {
                let settled = self.settle(id, starting, error).await?;
                kept = self.keep_end(id).await;
                settled
            }
            told => told?,
        };
        if let Err(error) = kept {
            tracing::warn!(container = id, %error, "should containerd be away when it ends, nobody will know how it did");
        }
        Ok(pid)
    }

    async fn start_task(&self, id: &str) -> Result<u32, Error> {
        let request = self.client.request(StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        });
        let started = within(TASK, "start containerd task", self.client.tasks().start(request)).await;
        started.map(|answer| answer.pid).map_err(creation::program)
    }

    /// Asks containerd, once it is back, whether the task runs that it was starting. Returns the
    /// PID, or the failure.
    async fn settle(&self, id: &str, starting: &Starting, failure: Error) -> Result<u32, Error> {
        let deadline = Instant::now() + TASK;
        let mut refused = None;
        while Instant::now() < deadline {
            let request = self.client.request(GetRequest {
                container_id: id.to_owned(),
                exec_id: String::new(),
            });
            let told = within(CALL, "ask for a task", self.client.tasks().get(request)).await;
            let task = match or_gone(told) {
                Ok(answer) => answer.and_then(|answer| answer.process),
                Err(error) if meaning(&error) == Meaning::Silent => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(task) = task else { return Err(failure) };
            match task.status() {
                Status::Created => match self.start_task(id).await {
                    Err(error) if meaning(&error) == Meaning::Silent => {}
                    // The first order may have reached the shim meanwhile.
                    Err(error) if refused.is_none() => refused = Some(error),
                    told => return told,
                },
                // It was killed while it waited.
                Status::Stopped if starting.fifo().is_some_and(|fifo| !fifo.is_written()) => return Err(failure),
                Status::Running | Status::Stopped | Status::Paused | Status::Pausing => return Ok(task.pid),
                // Its shim takes long to answer.
                Status::Unknown => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(failure)
    }

    /// Kills a container whose start was not answered, and then finds out whether it has run.
    async fn end_unheard(self: &Arc<Self>, sandbox: &str, id: &str, fifo: Option<&ExecFifo>) {
        if let Err(error) = self.kill_and_wait(id).await {
            // containerd reports it when it is back.
            tracing::warn!(container = id, %error, "whether it has run is not known");
            return;
        }
        match fifo {
            Some(fifo) if fifo.is_written() => self.ran_unheard(sandbox, id),
            Some(_) => self.abandon(id),
            None => {}
        }
    }

    /// Kills containers that an earlier agent was starting and that still wait: the order may be on
    /// its way, and its answer would be lost.
    pub(in crate::containerd) async fn end_all_unheard(self: &Arc<Self>) {
        let unheard: Vec<(String, String)> = {
            let records = self.records();
            let all = records.iter().flat_map(|entry| {
                let created = entry.record.containers().iter();
                let created = created.filter(|known| known.state == State::Created);
                let begun = created.filter(|known| entry.record.starting.contains(&known.id));
                begun.map(|known| (entry.record.sandbox.id.clone(), known.id.clone()))
            });
            all.collect()
        };
        let ends = unheard.iter().map(|(sandbox, id)| async move {
            let fifo = self.exec_fifo(id);
            self.end_unheard(sandbox, id, fifo.as_ref()).await;
        });
        futures::future::join_all(ends).await;
    }
}
