//! Running a created container's program, and finding out whether it runs when containerd goes away over it.

use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::{GetRequest, StartRequest};
use containerd_client::types::v1::Status;
use tokio::time::Instant;

use super::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use super::{Shared, creation};
use crate::clock::now;
use crate::embedded::io_error;
use crate::{Container, Error, Refusal, State};

/// Between two questions to a containerd that is away.
const PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    pub(super) async fn start(self: &Arc<Self>, sandbox: &str, id: &str) -> Result<Container, Error> {
        let (_, _guard) = self.turn(sandbox).await?;
        let container = self.container(sandbox, id)?;
        if container.state != State::Created {
            return Err(Refusal::wrong_state(&container).into());
        }
        // On disk first: what ends and has not been about to run never ran.
        let noted = self.records().begin(sandbox, id);
        let noted = noted.ok_or_else(|| Error::SandboxNotFound(sandbox.to_owned()))?;
        noted.map_err(io_error("write the record of", &self.directory(sandbox)))?;
        let held = self.hold_log(sandbox, id).await;
        let pid = self.start_and_keep(id).await?;
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
                // It was quick: its end is known already.
                State::Exited { started_at: since, .. } => *since = Some(started_at),
                State::Created | State::Running { .. } => found.state = state,
            }
        })?;
        self.watch_first(id, pid);
        self.watch_logger((sandbox, id), pid, held);
        Ok(Container {
            state: running,
            ..container
        })
    }

    /// Starts a task and has its end kept. Returns its pid.
    async fn start_and_keep(&self, id: &str) -> Result<u32, Error> {
        let (mut kept, started) = tokio::join!(self.keep_end(id), self.start_task(id));
        let pid = match started {
            Err(error) if meaning(&error) == Meaning::Silent => {
                let settled = self.settle(id, error).await?;
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

    /// containerd went away while it started the task: whether that runs, it says when it is back. The pid, or the failure.
    async fn settle(&self, id: &str, failure: Error) -> Result<u32, Error> {
        let deadline = Instant::now() + TASK;
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
                    told => return told,
                },
                Status::Running | Status::Stopped | Status::Paused | Status::Pausing => return Ok(task.pid),
                Status::Unknown => return Err(failure),
            }
        }
        Err(failure)
    }
}
