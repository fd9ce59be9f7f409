//! Exits of containers: from containerd's event stream, and from its list of tasks after the stream
//! broke.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_client::events::TaskExit;
use containerd_client::services::v1::{ListTasksRequest, PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use containerd_client::types::v1::{Process, Status};
use prost_types::Timestamp;
use tonic::Streaming;

use super::gone;
use crate::clock::now;
use crate::containerd::client::{CALL, within};
use crate::containerd::{Shared, logger};
use crate::embedded::ended;
use crate::{Container, Error, Event, Exit, State};

/// Timeout for the log of an ended container: writers after that are processes that it left behind.
/// What its shim has not copied by then is lost; the shim itself gives that two seconds or more
/// (`waitTimeout` in `cmd/containerd-shim-runc-v2/process/init.go`).
const LOG_LIMIT: Duration = Duration::from_secs(2);
/// Timeout for processes that an ended container left, and for its logger once it is told to end.
const LEFT_LIMIT: Duration = Duration::from_millis(500);
/// Topic of our own event, which shows that the subscription is active.
const LISTENING: &str = "/skiff/listening";
/// Backoff of reconnections to containerd: initial and maximum.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Subscribes, then compares, so that no exit is missed. Listens until this runtime is dropped.
pub(in crate::containerd) async fn listen(shared: &Arc<Shared>) -> Result<(), Error> {
    let mut stream = resume(shared).await?;
    // A weak reference, because the task is owned by its target.
    let weak = Arc::downgrade(shared);
    shared.spawn(async move {
        loop {
            let broken = loop {
                match stream.message().await {
                    Ok(Some(envelope)) => {
                        let Some(shared) = weak.upgrade() else { return };
                        shared.notice(&envelope);
                    }
                    Ok(None) => break "it ended".to_owned(),
                    Err(status) => break status.message().to_owned(),
                }
            };
            tracing::warn!(broken, "containerd's events are interrupted");
            let mut pause = BACK_OFF.0;
            stream = loop {
                tokio::time::sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                match resume(&shared).await {
                    Ok(stream) => break stream,
                    Err(error) => tracing::debug!(%error, "containerd is away"),
                }
                pause = (pause * 2).min(BACK_OFF.1);
            };
            tracing::info!("containerd's events are back");
        }
    });
    Ok(())
}

/// Subscribes to events, and reports exits missed before that.
async fn resume(shared: &Arc<Shared>) -> Result<Streaming<Envelope>, Error> {
    let stream = subscribe(shared).await?;
    compare(shared).await?;
    if let Err(error) = shared.keep_ends().await {
        tracing::warn!(%error, "should containerd be away again when containers end, nobody will know how they did");
    }
    shared.end_orphans_later();
    Ok(stream)
}

/// containerd answers a subscription with its first event and not before. So our own events are
/// published until one arrives: from then on none is missed.
async fn subscribe(shared: &Shared) -> Result<Streaming<Envelope>, Error> {
    let namespace = &shared.config.namespace;
    let filters = ["/tasks/exit", LISTENING].map(|topic| format!("topic==\"{topic}\",namespace==\"{namespace}\""));
    let request = shared.client.request(SubscribeRequest {
        filters: filters.to_vec(),
    });
    let (mut listener, mut sender) = (shared.client.events(), shared.client.events());
    let mut subscribing = std::pin::pin!(within(CALL, "subscribe to events", listener.subscribe(request)));
    loop {
        let request = shared.client.request(PublishRequest {
            topic: LISTENING.to_owned(),
            event: Some(containerd_client::to_any(&TaskExit::default())),
        });
        let publishing = async {
            within(CALL, "publish an event", sender.publish(request)).await?;
            tokio::time::sleep(BACK_OFF.0).await;
            Ok::<_, Error>(())
        };
        tokio::select! {
            stream = &mut subscribing => return stream,
            sent = publishing => sent?,
        }
    }
}

/// Reports containers that were running and have ended without an event.
pub(in crate::containerd) async fn compare(shared: &Arc<Shared>) -> Result<(), Error> {
    // Taken before containerd is asked: containers started meanwhile are not compared.
    let known: Vec<(Container, bool)> = {
        let records = shared.records();
        let all = records.iter().flat_map(|entry| {
            let starting = &entry.record.starting;
            let with = move |container: &Container| (container.clone(), starting.contains(&container.id));
            entry.record.containers().iter().map(with)
        });
        all.filter(|(container, _)| !matches!(container.state, State::Exited { .. }))
            .collect()
    };
    let request = shared.client.request(ListTasksRequest::default());
    let listed = within(CALL, "list containerd tasks", shared.client.tasks().list(request)).await?;
    let tasks: BTreeMap<String, Process> = listed.tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
    for (container, begun) in known {
        match tasks.get(&container.id) {
            // containerd killed a creation or start that was cut off by the end of an agent, or of
            // containerd.
            Some(task) if task.status() == Status::Stopped && !shared.may_have_run(&container) => {
                shared.abandon(&container.id);
            }
            None if begun && container.state == State::Created && shared.is_held_back(&container.id) => {
                shared.abandon(&container.id);
            }
            Some(task) if task.status() == Status::Stopped => {
                if container.state == State::Created {
                    shared.begun(&container.id, task.pid);
                }
                shared.exited(container.id, task.exit_status, time(task.exited_at.as_ref()));
            }
            // An agent started it and died before it could record that.
            Some(task) if task.status() == Status::Running && container.state == State::Created => {
                shared.begun(&container.id, task.pid);
            }
            // Its shim is gone, for example after a reboot. Count a container that an agent was
            // about to start as having run: that agent may have died before it could record the
            // start.
            None if begun || container.state != State::Created => {
                if let State::Exited { exit, .. } = ended(container.clone()).state {
                    let since = exit.finished_at;
                    shared.conclude(&container.id, exit, Some(since));
                }
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

fn time(stamp: Option<&Timestamp>) -> SystemTime {
    stamp
        .and_then(|stamp| SystemTime::try_from(*stamp).ok())
        .filter(|time| *time > SystemTime::UNIX_EPOCH)
        .unwrap_or_else(now)
}

impl Shared {
    fn notice(self: &Arc<Self>, envelope: &Envelope) {
        let Some(event) = envelope.event.as_ref().filter(|_| envelope.topic != LISTENING) else {
            return;
        };
        // containerd's type URLs lack the prefix that this decoder would require.
        let Ok(exit) = <TaskExit as prost::Message>::decode(event.value.as_slice()) else {
            tracing::warn!(topic = envelope.topic, "an event of containerd is not understood");
            return;
        };
        // Exits of execs are awaited by their callers.
        if exit.id == exit.container_id {
            self.exited(exit.container_id, exit.exit_status, time(exit.exited_at.as_ref()));
        }
    }

    /// Handles the exit of a container's init process; reported once its log is complete.
    fn exited(self: &Arc<Self>, container: String, status: u32, finished_at: SystemTime) {
        let Some(sandbox) = self.records().owner(&container) else {
            return;
        };
        let code = i32::try_from(status).unwrap_or(255);
        // Also if a child or an exec was killed, at any time, and the first process carried on.
        let group = self.group(&sandbox).join(&container);
        let oom_killed = self.cgroups.oom_kills(&group) > 0;
        let exit = Exit {
            code,
            // The shim reports 128 + signal, which a program's own code may equal.
            signal: (code > 128 && code <= 128 + 64).then(|| code - 128),
            oom_killed,
            finished_at,
        };
        let directory = self.container_directory(&sandbox, &container);
        let shared = Arc::clone(self);
        self.spawn(async move {
            // With a PID namespace shared with the pod or the machine, not every version of
            // containerd has runc kill all processes.
            let doing = "end what a container left";
            let ending = shared.blocking(doing, move |shared| shared.cgroups.kill(&group, LEFT_LIMIT));
            if let Ok(Err(error)) = ending.await {
                tracing::warn!(container, %error, "what it left lives on");
            }
            // The shim copies the remaining output and then closes the pipes: only that ends the
            // log.
            if let Some(logger) = logger::process(&directory)
                && tokio::time::timeout(LOG_LIMIT, gone(logger)).await.is_err()
                && let Some(logger) = logger::finish(&directory)
            {
                drop(tokio::time::timeout(LEFT_LIMIT, gone(logger)).await);
            }
            shared.conclude(&container, exit, None);
        });
    }

    fn may_have_run(&self, container: &Container) -> bool {
        let begun = {
            let records = self.records();
            let mut all = records.iter();
            all.any(|entry| entry.record.starting.contains(&container.id))
        };
        container.state != State::Created || begun && !self.is_held_back(&container.id)
    }

    /// Records that a container was not and will not be started.
    pub(in crate::containerd) fn abandon(&self, container: &str) {
        let Some(sandbox) = self.records().owner(container) else {
            return;
        };
        if let Err(error) = self.give_up(&sandbox, |known| known == container) {
            tracing::warn!(container, %error, "that it never ran is not on disk");
        }
    }

    /// Records that a container runs whose start was not recorded.
    fn begun(self: &Arc<Self>, container: &str, pid: u32) {
        let (Some(sandbox), Ok(pid)) = (self.records().owner(container), i32::try_from(pid)) else {
            return;
        };
        let changed = self.change(&sandbox, |containers| {
            let found = containers
                .iter_mut()
                .find(|known| known.id == container && known.state == State::Created);
            if let Some(found) = found {
                let started_at = now();
                found.state = State::Running { pid, started_at };
                return true;
            }
            false
        });
        match changed {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => tracing::warn!(container, %error, "a start is not on disk"),
        }
        self.watch_first(container, pid);
        self.watch_logger((&sandbox, container), pid);
    }

    /// Records that a container has run whose shim died before it could report that.
    pub(in crate::containerd) fn ran_unheard(&self, sandbox: &str, container: &str) {
        let known = self.change(sandbox, |containers| {
            let found = containers.iter_mut().find(|known| known.id == container)?;
            if let State::Exited { started_at, .. } = &mut found.state {
                // containerd has reported the exit, but not the start.
                started_at.get_or_insert_with(now);
            }
            Some(found.clone())
        });
        match known {
            Ok(Some(known)) => {
                if let State::Exited { exit, .. } = ended(known).state {
                    let since = exit.finished_at;
                    self.conclude(container, exit, Some(since));
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(container, %error, "that it ran is not on disk"),
        }
    }

    /// Records an exit and reports it, once. `unseen`: earliest time of a start that was not
    /// recorded.
    fn conclude(&self, container: &str, exit: Exit, unseen: Option<SystemTime>) {
        let Some(sandbox) = self.records().owner(container) else {
            return;
        };
        let ended = exit.clone();
        let changed = self.change(&sandbox, |containers| {
            let found = containers.iter_mut().find(|known| known.id == container)?;
            let started_at = match found.state {
                State::Exited { .. } => return None,
                State::Running { started_at, .. } => Some(started_at),
                State::Created => unseen,
            };
            found.state = State::Exited {
                exit: ended,
                started_at,
            };
            Some(())
        });
        match changed {
            Ok(None) => return,
            Ok(Some(())) => {}
            // A failed write must not hide the exit from the agent.
            Err(error) => tracing::warn!(container, %error, "an exit is not on disk"),
        }
        let event = Event::ContainerExited {
            sandbox_id: sandbox,
            container_id: container.to_owned(),
            exit,
        };
        // It fails without receivers, which is harmless.
        drop(self.events.send(event));
    }
}
