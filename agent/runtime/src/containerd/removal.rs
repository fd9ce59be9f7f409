//! Removal of containers and sandboxes, in any state; of pods after containerd is gone
//! ([`abandoned`]), and of shims that serve nothing ([`orphans`]).

pub(super) mod abandoned;
pub(super) mod orphans;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::{DeleteContainerRequest, DeleteTaskRequest, ListContainersRequest, WaitRequest};
use nix::libc;
use tokio::sync::OwnedMutexGuard;

use super::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use super::sandbox::holding;
use super::{Shared, logger};
use crate::embedded::ended;
use crate::error::finish;
use crate::files::remove_directory;
use crate::{Container, Error, State};

/// Timeout of killed processes' exit.
const DEATH: Duration = Duration::from_secs(10);

/// Delay of removal retries, initial and maximum, and their number.
const LATER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
const TRIES: u32 = 20;

impl Shared {
    /// Kills a container if it runs and removes all traces of it. Succeeds if it does not exist.
    pub(super) async fn remove_container(self: &Arc<Self>, sandbox: &str, container: &str) -> Result<(), Error> {
        let turn = {
            let records = self.records();
            records.get(sandbox).map(|entry| Arc::clone(&entry.turn))
        };
        let Some(turn) = turn else { return Ok(()) };
        let _guard = turn.lock_owned().await;
        if self.records().container(sandbox, container).is_none() {
            return Ok(());
        }
        self.take_apart(sandbox, container).await
    }

    /// Removes the remains of a failed creation once containerd answers again: nothing else would
    /// before the removal of the sandbox.
    pub(super) fn remove_later(self: &Arc<Self>, sandbox: &str, container: &str) {
        let (weak, sandbox, container) = (Arc::downgrade(self), sandbox.to_owned(), container.to_owned());
        self.spawn(async move {
            let mut pause = LATER.0;
            for _ in 0..TRIES {
                tokio::time::sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                match shared.remove_container(&sandbox, &container).await {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(container, %error, "it is not removed yet"),
                }
                pause = (pause * 2).min(LATER.1);
            }
            tracing::warn!(container, "what a failed creation left goes with its sandbox");
        });
    }

    /// Waits for the exit of a container that was killed.
    async fn wait(&self, container: &str) -> Result<(), Error> {
        let wait = self.client.request(WaitRequest {
            container_id: container.to_owned(),
            exec_id: String::new(),
        });
        or_gone(within(DEATH, "wait for the end of a container", self.client.tasks().wait(wait)).await).map(drop)
    }

    /// Records that containers were never started and will not be. Written before they are killed,
    /// so that their exits do not count as runs.
    pub(super) fn give_up(&self, sandbox: &str, which: impl Fn(&str) -> bool) -> Result<(), Error> {
        let never = |container: &Container| container.state == State::Created && which(&container.id);
        let any = {
            let records = self.records();
            let entry = records.get(sandbox);
            entry.is_some_and(|entry| entry.record.containers().iter().any(never))
        };
        if !any {
            return Ok(());
        }
        self.change(sandbox, |containers| {
            for container in containers.iter_mut().filter(|container| never(container)) {
                *container = ended(container.clone());
            }
        })
    }

    /// Removes a container; the caller holds the sandbox's lock.
    pub(super) async fn take_apart(self: &Arc<Self>, sandbox: &str, container: &str) -> Result<(), Error> {
        self.give_up(sandbox, |known| known == container)?;
        self.remove_stored(container).await?;
        failpoint::reach("unstored");
        self.remove_root(container).await?;
        let (group, directory) = (
            self.group(sandbox).join(container),
            self.container_directory(sandbox, container),
        );
        let removing = self.blocking("remove the container's files", move |shared| {
            let mut failures = Vec::new();
            if let Err(error) = shared.cgroups.kill(&group, DEATH) {
                failures.push(format!("kill processes of {}: {error}", group.display()));
            }
            failures.extend(shared.cgroups.remove(&group));
            logger::dismiss(&directory);
            remove_directory(&directory, &mut failures);
            failures
        });
        finish(removing.await?)?;
        match self.change(sandbox, |containers| containers.retain(|known| known.id != container)) {
            Ok(()) | Err(Error::SandboxNotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a container from containerd: its processes, its task, its record.
    async fn remove_stored(&self, container: &str) -> Result<(), Error> {
        self.remove_task(container).await?;
        let request = self.client.request(DeleteContainerRequest {
            id: container.to_owned(),
        });
        let mut containers = self.client.containers();
        let deleting = within(CALL, "delete container", containers.delete(request));
        let (deleted, forgotten) = tokio::join!(deleting, self.forget_end(container));
        or_gone(deleted)?;
        forgotten
    }

    /// Kills a container and waits for its exit; succeeds if it does not exist.
    pub(super) async fn kill_and_wait(&self, container: &str) -> Result<(), Error> {
        self.kill(container, libc::SIGKILL).await?;
        self.wait(container).await
    }

    async fn remove_task(&self, container: &str) -> Result<(), Error> {
        self.kill_and_wait(container).await?;
        let delete = self.client.request(DeleteTaskRequest {
            container_id: container.to_owned(),
        });
        let deleted = within(TASK, "delete containerd task", self.client.tasks().delete(delete)).await;
        or_gone(deleted).map(drop)
    }

    /// Kills all containers of a sandbox and waits for their exits; succeeds if there are none.
    pub(super) async fn end(self: &Arc<Self>, sandbox: &str) -> Result<(), Error> {
        let _guard = self.last_turn(sandbox).await;
        self.give_up(sandbox, |_| true)?;
        let containers = {
            let records = self.records();
            let entry = records.get(sandbox);
            entry.map_or_else(Vec::new, |entry| entry.record.containers().to_vec())
        };
        let group = self.group(sandbox);
        self.unthrottle(&group);
        for container in &containers {
            self.unthrottle(&group.join(&container.id));
        }
        self.hasten(&containers).await;
        let ends = containers.iter().map(|container| self.wait(&container.id));
        let ended = futures::future::try_join_all(ends).await;
        failpoint::reach("processes ended");
        ended.map(drop)
    }

    /// Takes the sandbox's lock for the last time: afterwards it is only removed.
    async fn last_turn(&self, sandbox: &str) -> Option<OwnedMutexGuard<()>> {
        let turn = {
            let mut records = self.records();
            records.get_mut(sandbox).map(|entry| {
                entry.leaving = true;
                Arc::clone(&entry.turn)
            })
        };
        Some(turn?.lock_owned().await)
    }

    /// Removes a sandbox with all its containers; succeeds if it does not exist. Continues after
    /// failures.
    pub(super) async fn remove(self: &Arc<Self>, sandbox: &str) -> Result<(), Error> {
        let _guard = self.last_turn(sandbox).await;
        let mut failures = Vec::new();
        let (containers, pause) = {
            let records = self.records();
            records.get(sandbox).map_or((Vec::new(), None), |entry| {
                (entry.record.containers().to_vec(), entry.record.pause.clone())
            })
        };
        failures.extend(self.give_up(sandbox, |_| true).err().map(|error| chain(&error)));
        self.hasten(&containers).await;
        for container in containers {
            if let Err(error) = self.take_apart(sandbox, &container.id).await {
                failures.push(format!("remove container {}: {}", container.id, chain(&error)));
            }
        }
        failures.extend(self.remove_ahead(sandbox).await);
        failures.extend(self.release_images(sandbox).await);
        if let Some(pause) = pause {
            pause.end();
        }
        let (directory, group, id) = (self.directory(sandbox), self.group(sandbox), sandbox.to_owned());
        let empty = failures.is_empty();
        let removing = self.blocking("remove the sandbox's files", move |shared| {
            let mut more = Vec::new();
            if empty {
                orphans::remove_socket(&shared.config.address, &shared.config.namespace, &id);
            }
            if let Err(error) = shared.cgroups.kill(&group, DEATH) {
                more.push(format!("kill processes of {}: {error}", group.display()));
            }
            failpoint::reach("processes ended");
            more.extend(shared.cgroups.remove(&group));
            failpoint::reach("group removed");
            holding::release(&directory, &mut more);
            if more.is_empty() {
                remove_directory(&directory, &mut more);
            }
            more
        });
        failures.extend(removing.await?);
        if failures.is_empty() {
            self.records().remove(sandbox);
        }
        finish(failures)
    }

    /// Kills all at once, so that they die in parallel.
    async fn hasten(&self, containers: &[Container]) {
        let alive = containers
            .iter()
            .filter(|container| !matches!(container.state, State::Exited { .. }));
        let kills = alive.map(|container| self.kill(&container.id, libc::SIGKILL));
        // Failed kills are retried, and reported, one by one.
        drop(futures::future::join_all(kills).await);
    }

    /// Removes containers with our label that belong to no sandbox: a crash came between two
    /// records.
    pub(super) async fn remove_strays(&self) -> Result<(), Error> {
        let filters = vec![format!("labels.\"{}\"=={:?}", agent_containerd::OWNER, self.owner())];
        let request = self.client.request(ListContainersRequest { filters });
        let listed = within(CALL, "list containers", self.client.containers().list(request)).await?;
        let stored = listed.containers.into_iter().map(|stored| stored.id);
        let all: BTreeSet<String> = stored.chain(self.kept_ends().await?.unwrap_or_default()).collect();
        for container in all {
            if self.records().owner(&container).is_none() {
                tracing::info!(container, "removing a container that belongs to no sandbox");
                if let Err(error) = self.remove_stored(&container).await {
                    if meaning(&error) != Meaning::WrongState {
                        return Err(error);
                    }
                    tracing::warn!(container, error = chain(&error), "it stays");
                }
            }
        }
        Ok(())
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
