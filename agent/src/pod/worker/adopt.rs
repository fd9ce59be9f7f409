//! Adopts pods that an earlier agent left running, and detects missing containers.

use agent_plan::Timestamp;
use agent_plan::pod::observed::{Exit, Instance, Sandbox, State};
use agent_plan::pod::restart::BackOff;
use agent_plan::pod::{lifecycle, pods};
use k8s_openapi::api::core::v1::{ContainerStatus, ContainerUser, LinuxContainerUser};
use runtime::Container;
use tracing::info;

use super::{Done, Worker};

impl Worker {
    /// Rebuilds the observed state from the runtime, the network and the API.
    pub(crate) fn adopt(&mut self, sandbox: Option<&runtime::Sandbox>, addresses: Option<Vec<std::net::IpAddr>>) {
        self.rebuild(sandbox, addresses);
        self.consider_resize();
    }

    fn rebuild(&mut self, sandbox: Option<&runtime::Sandbox>, addresses: Option<Vec<std::net::IpAddr>>) {
        let active = pods::terminal_phase(&self.pod).is_none();
        let cut_off = addresses.as_ref().is_some_and(Vec::is_empty);
        // The sandbox has no containers, so the agent that created it may have stopped before the
        // pod's volumes and files were complete; or it was about to remove the sandbox.
        let unfinished = |sandbox: &runtime::Sandbox| active && (sandbox.containers.is_empty() || cut_off);
        if active && let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.lost && !unfinished(sandbox)) {
            self.adopt_running(sandbox, addresses);
        } else if let Some(sandbox) = sandbox {
            self.sandbox_attempt = sandbox.attempt;
            if sandbox.lost || unfinished(sandbox) {
                self.remember_started(sandbox);
                self.remember_lost();
                self.sandbox_lost();
            } else {
                self.view.sandbox = Sandbox::Ready {
                    addresses: addresses.unwrap_or_default(),
                };
            }
            return;
        }
        self.remember_lost();
    }

    fn adopt_running(&mut self, sandbox: &runtime::Sandbox, addresses: Option<Vec<std::net::IpAddr>>) {
        let now = self.context.now();
        info!(pod = %self.id(), sandbox = sandbox.id, containers = sandbox.containers.len(), "adopted");
        self.sandbox_attempt = sandbox.attempt;
        let stored = self
            .pod
            .status
            .iter()
            .flat_map(|status| status.pod_ips.iter().flatten());
        let addresses = addresses.unwrap_or_else(|| stored.filter_map(|address| address.ip.parse().ok()).collect());
        let host = self.pod.spec.as_ref().is_some_and(pods::host_network);
        let addresses = if host {
            self.context.config.host_addresses()
        } else {
            self.context.config.in_order(&addresses)
        };
        self.view.sandbox = Sandbox::Ready { addresses };
        for container in &sandbox.containers {
            if !has_run(container) {
                self.discard(container);
                continue;
            }
            let mut instance = instance(container, now);
            if let State::Exited(exit) = &mut instance.state {
                let known = self.stored_message(&container.name, &container.id);
                let is_news = known.is_none();
                exit.message =
                    known.unwrap_or_else(|| self.termination_message(&container.name, container.attempt, exit.code));
                if is_news {
                    // It ended while no agent ran.
                    self.remember(&container.name, &container.id, container.attempt, exit);
                }
            }
            let identity = self.context.parts.runtime.identity(&sandbox.id, &container.id);
            let identity = identity.map(|identity| (container.id.clone(), user(identity)));
            self.view.users.extend(identity);
            self.view
                .instances
                .entry(container.name.clone())
                .or_default()
                .push(instance);
        }
        let names: Vec<String> = self.view.instances.keys().cloned().collect();
        for name in names {
            if let Some(instances) = self.view.instances.get_mut(&name) {
                instances.sort_by_key(|instance| instance.attempt);
            }
            self.resume(&name);
        }
        lifecycle::resume_reset(&self.pod, &mut self.view);
        // Changes while no agent ran are applied too.
        self.watch_sources();
    }

    /// Returns the message of an instance's termination from the stored status, which has the last
    /// two; `None` if it does not have this one.
    fn stored_message(&self, container: &str, id: &str) -> Option<String> {
        let status = pods::stored_status(&self.pod, container)?;
        let both = [&status.state, &status.last_state].into_iter().flatten();
        let mut ends = both.filter_map(|state| state.terminated.as_ref());
        let own = ends.find(|end| end.container_id.as_deref().is_some_and(|known| known.ends_with(id)))?;
        Some(own.message.clone().unwrap_or_default())
    }

    /// Restores probe results of an instance that was started, or ready, before.
    fn resume(&mut self, container: &str) {
        let Some(instance) = self.view.latest(container).cloned() else {
            return;
        };
        let last_end = self
            .view
            .previous(container)
            .and_then(Instance::exit)
            .map(|exit| exit.finished_at);
        if let Some(finished) = last_end.or_else(|| instance.exit().map(|exit| exit.finished_at)) {
            self.memory(container).back_off = BackOff::after_restarts(instance.attempt, finished);
        }
        let State::Running { since } = instance.state else {
            return;
        };
        self.note_running(container, instance.attempt, &instance.id);
        let stored = pods::stored_status(&self.pod, container).filter(|status| {
            status
                .container_id
                .as_deref()
                .is_some_and(|id| id.ends_with(&instance.id))
        });
        let (started, ready) = stored.map_or((false, false), |status: &ContainerStatus| {
            (status.started == Some(true), status.ready)
        });
        self.arm(container, since);
        let memory = self.memory(container);
        if started {
            memory.startup = memory.startup.take().map(agent_plan::pod::probe::Probe::passed);
        }
        if ready {
            memory.readiness = memory.readiness.take().map(agent_plan::pod::probe::Probe::passed);
        }
    }

    /// Removes a container that was created but not started: it is created again.
    fn discard(&mut self, container: &Container) {
        let (context, sandbox, id) = (
            std::sync::Arc::clone(&self.context),
            self.sandbox_id(),
            container.id.clone(),
        );
        self.tasks.spawn(async move {
            let removed = context.parts.runtime.remove_container(&sandbox, &id);
            if let Err(error) = context.operations.of_runtime("remove_container", removed).await {
                tracing::warn!(
                    container = id,
                    error = image::chain(&error),
                    "a half-made container could not be removed"
                );
            }
            Done::Changed
        });
    }

    /// Records started containers of a lost sandbox: the API may not have the latest ones.
    pub(crate) fn remember_started(&mut self, sandbox: &runtime::Sandbox) {
        let now = self.context.now();
        if pods::terminal_phase(&self.pod).is_some() {
            return;
        }
        for container in &sandbox.containers {
            let told = pods::stored_status(&self.pod, &container.name);
            let told = told.filter(|status| status.container_id.is_some());
            let told = told.and_then(|status| u32::try_from(status.restart_count).ok());
            if has_run(container) && told.is_none_or(|told| container.attempt > told) {
                let mut instance = instance(container, now);
                instance.lost = true;
                if let State::Exited(exit) = &instance.state {
                    self.remember(&container.name, &container.id, container.attempt, exit);
                }
                self.view
                    .instances
                    .entry(container.name.clone())
                    .or_default()
                    .push(instance);
            }
        }
        for instances in self.view.instances.values_mut() {
            instances.sort_by_key(|instance| instance.attempt);
        }
    }

    /// Records containers that have run according to the API and that the runtime does not have:
    /// the machine was restarted, or they were removed manually.
    fn remember_lost(&mut self) {
        if pods::terminal_phase(&self.pod).is_some() {
            return;
        }
        let now = self.context.now();
        let added = pods::ephemeral_containers(&self.pod).iter();
        let names = pods::all_containers(&self.pod).map(|container| &container.name);
        let names: Vec<String> = names.chain(added.map(|added| &added.name)).cloned().collect();
        for name in names {
            if self.view.latest(&name).is_some() {
                continue;
            }
            let Some(instance) = pods::stored_status(&self.pod, &name).and_then(|status| lost(status, now)) else {
                continue;
            };
            self.view.instances.entry(name).or_default().push(instance);
        }
    }
}

fn has_run(container: &Container) -> bool {
    match container.state {
        runtime::State::Running { .. } => true,
        runtime::State::Exited { started_at, .. } => started_at.is_some(),
        runtime::State::Created => false,
    }
}

fn lost(status: &ContainerStatus, now: Timestamp) -> Option<Instance> {
    let id = status.container_id.clone()?;
    let state = status.state.as_ref();
    let last = status.last_state.as_ref();
    let terminated = state.and_then(|state| state.terminated.as_ref()).or_else(|| {
        last.and_then(|last| last.terminated.as_ref())
            .filter(|_| state.is_some_and(|state| state.waiting.is_some()))
    });
    let exit = match terminated {
        Some(terminated) => Exit {
            code: terminated.exit_code,
            reason: terminated.reason.clone().unwrap_or_default(),
            message: terminated.message.clone().unwrap_or_default(),
            started_at: terminated.started_at.as_ref().map(|time| time.0),
            finished_at: terminated.finished_at.as_ref().map_or(now, |time| time.0.min(now)),
        },
        None => unknown(
            now,
            state
                .and_then(|state| state.running.as_ref()?.started_at.as_ref())
                .map(|time| time.0),
        ),
    };
    Some(Instance {
        id,
        attempt: u32::try_from(status.restart_count).unwrap_or(0),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state: State::Exited(exit),
        lost: true,
        reset: false,
    })
}

/// Exit of a container that was not observed.
pub(super) fn unknown(now: Timestamp, started_at: Option<Timestamp>) -> Exit {
    Exit {
        code: 137,
        reason: "ContainerStatusUnknown".to_owned(),
        message: "The container could not be located when the pod was terminated".to_owned(),
        started_at,
        finished_at: now,
    }
}

/// Converts a container of the runtime for the plan.
pub(super) fn instance(container: &Container, now: Timestamp) -> Instance {
    let state = match &container.state {
        runtime::State::Created => State::Created,
        runtime::State::Running { started_at, .. } => State::Running {
            since: timestamp(*started_at, now),
        },
        runtime::State::Exited {
            exit: ended,
            started_at,
        } => State::Exited(exit(ended, started_at.map(|time| timestamp(time, now)), now)),
    };
    Instance {
        id: container.id.clone(),
        attempt: container.attempt,
        image: container.image.clone(),
        image_id: container.image_id.clone(),
        state,
        lost: false,
        reset: false,
    }
}

pub(super) fn user(identity: runtime::Identity) -> ContainerUser {
    let groups: Vec<i64> = identity.groups.into_iter().map(i64::from).collect();
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: identity.uid.into(),
            gid: identity.gid.into(),
            // The API server omits empty lists: a status with one would never equal the stored
            // status.
            supplemental_groups: Some(groups).filter(|groups| !groups.is_empty()),
        }),
    }
}

pub(super) fn exit(exit: &runtime::Exit, started_at: Option<Timestamp>, now: Timestamp) -> Exit {
    let reason = match (exit.oom_killed, exit.code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    Exit {
        code: exit.code,
        reason: reason.to_owned(),
        message: String::new(),
        started_at,
        finished_at: timestamp(exit.finished_at, now),
    }
}

/// Returns a time that is not in the future: a time from before a backward clock step would delay
/// whatever depends on it.
fn timestamp(time: std::time::SystemTime, now: Timestamp) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(now).min(now)
}
