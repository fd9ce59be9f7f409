//! Handlers of events: container exits, loss of the sandbox, results of tasks.

use std::sync::Arc;

use agent_plan::later;
use agent_plan::pod::observed::{Exit, Instance, Sandbox, State};
use agent_plan::pod::status::{RESET_MESSAGE, RESETTING};
use agent_plan::pod::{lifecycle, pods};
use tracing::{info, warn};

use super::container::mounts;
use super::{Done, Worker, adopt};
use crate::client::events::Kind;
use crate::pod::crashes::End;
use crate::pod::instances::{Place, Run};

const MESSAGE_BYTES: u64 = 4096;
/// Maximum length of all containers' messages together.
const POD_BYTES: usize = 12 << 10;

impl Worker {
    pub(super) fn conclude(&mut self, done: Done) {
        match done {
            Done::Prepared { sandbox, outcome } => self.prepared(&sandbox, outcome),
            Done::Pulled { container, outcomes } => self.pulled(&container, outcomes),
            Done::Started { container, outcome } => self.started(&container, outcome),
            Done::Probed {
                container,
                instance,
                kind,
                outcome,
            } => self.probed(&container, &instance, kind, outcome),
            Done::Hooked {
                container,
                instance,
                hook,
                outcome,
            } => self.hooked(&container, &instance, hook, outcome),
            Done::TornDown(outcome) => self.torn_down(outcome),
            Done::Forgotten(sandbox) => drop(self.earlier.remove(&sandbox)),
            Done::Published(outcome) => self.published(*outcome),
            Done::Finished(outcome) => self.finished(outcome),
            Done::Inspected(sandbox) => sandbox.iter().for_each(|sandbox| self.compare(sandbox)),
            Done::Resized(outcome) => self.resized(outcome),
            Done::Changed => {}
        }
    }

    pub(super) fn notice(&mut self, event: runtime::Event) {
        match event {
            runtime::Event::ContainerExited { container_id, exit, .. } => self.exited(&container_id, &exit),
            runtime::Event::SandboxLost { sandbox_id } => {
                if sandbox_id == self.sandbox_id() {
                    self.sandbox_lost();
                }
            }
        }
    }

    /// Handles the exit of a container. If its start was not reported yet, the exit is kept for
    /// then.
    pub(super) fn exited(&mut self, id: &str, exit: &runtime::Exit) {
        let found = self.view.instances.iter_mut().find_map(|(name, instances)| {
            let instance = instances.iter_mut().find(|instance| instance.id == id)?;
            Some((name.clone(), instance))
        });
        let Some((container, instance)) = found else {
            if self.view.memory.values().any(|memory| memory.starting) {
                self.early_exits.insert(id.to_owned(), exit.clone());
            }
            return;
        };
        let started_at = match &instance.state {
            State::Running { since } => Some(*since),
            State::Created => None,
            State::Exited(_) => return,
        };
        let attempt = instance.attempt;
        self.note_ended(&container, attempt);
        let mut ended = adopt::exit(exit, started_at, self.context.now());
        ended.message = self.termination_message(&container, attempt, ended.code);
        if ended.code != 0 && lifecycle::is_reset_due(&self.pod, &self.view) {
            RESETTING.clone_into(&mut ended.reason);
            RESET_MESSAGE.clone_into(&mut ended.message);
        }
        info!(pod = %self.id(), container, code = ended.code, reason = ended.reason, "container ended");
        self.context.started.container_ended(&self.pod, &container, &ended);
        self.remember(&container, id, attempt, &ended);
        self.end(&container, id, &ended);
    }

    /// Records a termination for the time after the pod, unless it was expected.
    pub(super) fn remember(&mut self, container: &str, id: &str, attempt: u32, exit: &Exit) {
        if pods::deletion_grace(&self.pod).is_some() || (exit.code == 0 && self.was_to_end(container)) {
            return;
        }
        let sandbox = self.sandbox_id();
        let usage = self.context.parts.runtime.usage(Some((&sandbox, Some(id))));
        let output = self.last_output(container, attempt);
        let end = End::new(attempt, exit, &usage, &output);
        let (context, pod, container) = (Arc::clone(&self.context), Arc::clone(&self.pod), container.to_owned());
        self.tasks.spawn(async move {
            let written = common::task::spawn_blocking(move || context.crashes.add(&pod, &container, end)).await;
            match written {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(%error, "a failure could not be remembered"),
                Err(error) => warn!(%error, "a failure could not be remembered"),
            }
            Done::Changed
        });
    }

    /// True if a container was expected to end when it exited with code 0.
    fn was_to_end(&self, container: &str) -> bool {
        let wanted = pods::container(&self.pod, container);
        let goes_on = wanted.is_some_and(|wanted| pods::restarts(&self.pod, &wanted, 0));
        let ends = self.view.winding_down.is_some() || self.view.termination.is_some();
        let known = self.view.memory.get(container);
        // A container that was stopped for a failed probe has failed.
        let stopped = known.is_some_and(|memory| memory.stopping.is_some() && !memory.revival);
        !goes_on || ends || stopped
    }

    fn log_of(&self, container: &str, attempt: u32) -> std::path::PathBuf {
        let directory = self.context.config.logs.of(&self.pod).join(container);
        directory.join(format!("{attempt}.log"))
    }

    fn key(&self, container: &str, attempt: u32) -> Run {
        Run {
            pod: pods::uid(&self.pod).to_owned(),
            container: container.to_owned(),
            attempt,
        }
    }

    pub(super) fn note_running(&self, container: &str, attempt: u32, instance: &str) {
        self.context.config.logs.link(&self.pod, container, attempt, instance);
        let run = self.key(container, attempt);
        let place = Place {
            sandbox: self.sandbox_id(),
            instance: instance.to_owned(),
        };
        self.context.running.send_modify(|running| {
            running.insert(run, place);
        });
    }

    fn note_ended(&self, container: &str, attempt: u32) {
        let run = self.key(container, attempt);
        self.context.running.send_modify(|running| {
            running.remove(&run);
        });
    }

    fn end(&mut self, container: &str, id: &str, exit: &Exit) {
        if let Some(instances) = self.view.instances.get_mut(container)
            && let Some(instance) = instances.iter_mut().find(|instance| instance.id == id)
        {
            instance.state = State::Exited(exit.clone());
        }
        let memory = self.memory(container);
        memory.startup = None;
        memory.readiness = None;
        memory.liveness = None;
        memory.post_start = false;
        let (stopped, renewal) = (memory.stopping.take().is_some(), memory.renewal);
        let ends = self.view.winding_down.is_some() || lifecycle::is_reset_due(&self.pod, &self.view);
        // A container that a probe or a hook has failed is backed off as if it had ended by itself.
        if !(stopped && (renewal || ends)) {
            self.tell_back_off(container, exit);
        }
    }

    /// Records an event if a container that has ended waits for its restart.
    pub(super) fn tell_back_off(&mut self, container: &str, exit: &Exit) {
        let memory = self.memory(container);
        let (delay, revival) = (memory.back_off.delay_seconds(exit.finished_at), memory.revival);
        let wanted = pods::container(&self.pod, container);
        let restarts = revival || wanted.is_some_and(|wanted| pods::restarts(&self.pod, &wanted, exit.code));
        if delay > 0 && restarts && pods::deletion_grace(&self.pod).is_none() {
            let message = format!(
                "Back-off restarting failed container {container} in pod {}_{}({})",
                pods::name(&self.pod),
                pods::namespace(&self.pod),
                pods::uid(&self.pod)
            );
            self.context
                .recorder
                .pod(&self.pod, Some(container), Kind::Warning, "BackOff", message);
        }
    }

    /// Returns the termination message of a container, truncated to its share of the pod's limit.
    pub(super) fn termination_message(&self, container: &str, attempt: u32, code: i32) -> String {
        let mut message = self.message_left(container, attempt, code);
        let added = pods::ephemeral_containers(&self.pod).len();
        let share = POD_BYTES / (pods::all_containers(&self.pod).count() + added).max(1);
        message.truncate(message.floor_char_boundary(share));
        message
    }

    fn message_left(&self, container: &str, attempt: u32, code: i32) -> String {
        let directory = self.context.pod_directory(pods::uid(&self.pod));
        let message = crate::confined::tail(&mounts::termination_log(&directory, container, attempt), MESSAGE_BYTES);
        let message = String::from_utf8_lossy(&message.unwrap_or_default()).into_owned();
        let wanted = pods::container(&self.pod, container);
        let policy = wanted.and_then(|container| container.termination_message_policy.clone());
        if !message.is_empty() || code == 0 || policy.as_deref() != Some("FallbackToLogsOnError") {
            return message;
        }
        self.last_output(container, attempt)
    }

    fn last_output(&self, container: &str, attempt: u32) -> String {
        let tail = crate::confined::tail(&self.log_of(container, attempt), agent_plan::container::log::END);
        agent_plan::container::log::end(&tail.unwrap_or_default())
    }

    /// The sandbox was lost with its containers: a new one is created.
    pub(super) fn sandbox_lost(&mut self) {
        let now = self.context.now();
        warn!(pod = %self.id(), "the sandbox is lost");
        let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        self.context
            .recorder
            .pod(&self.pod, None, Kind::Normal, "SandboxChanged", message);
        let mut ended = Vec::new();
        for (container, instances) in &mut self.view.instances {
            for instance in instances {
                instance.lost = true;
                let started_at = match &instance.state {
                    State::Running { since } => Some(*since),
                    State::Created => None,
                    State::Exited(_) => continue,
                };
                let exit = adopt::unknown(now, started_at);
                if started_at.is_some() {
                    ended.push((container.clone(), instance.id.clone(), instance.attempt, exit.clone()));
                }
                instance.state = State::Exited(exit);
            }
        }
        for (container, id, attempt, exit) in ended {
            self.remember(&container, &id, attempt, &exit);
        }
        let uid = pods::uid(&self.pod).to_owned();
        self.context
            .running
            .send_modify(|running| running.retain(|run, _| run.pod != uid));
        for memory in self.view.memory.values_mut() {
            memory.stopping = None;
            memory.failure = None;
            memory.post_start = false;
            memory.startup = None;
            memory.readiness = None;
            memory.liveness = None;
        }
        let id = self.sandbox_id();
        self.sandbox_attempt = self.sandbox_attempt.saturating_add(1);
        self.view.sandbox = Sandbox::Failed {
            until: later(now, 1),
            failures: 0,
        };
        self.clear_away(id);
    }

    /// Reads the sandbox from the runtime, after events were lost, until it answers.
    pub(super) fn inspect(&mut self) {
        let (context, id) = (Arc::clone(&self.context), self.sandbox_id());
        self.tasks.spawn(async move {
            let all = context.all_sandboxes().await;
            Done::Inspected(all.into_iter().find(|sandbox| sandbox.id == id))
        });
    }

    /// Compares with the state of the runtime, after events were lost.
    pub(super) fn compare(&mut self, sandbox: &runtime::Sandbox) {
        if sandbox.id != self.sandbox_id() {
            return;
        }
        if sandbox.lost {
            self.sandbox_lost();
            return;
        }
        for container in &sandbox.containers {
            if let runtime::State::Exited { exit, .. } = &container.state {
                self.exited(&container.id, exit);
            }
        }
    }

    pub(super) fn instance_id(&self, container: &str) -> Option<String> {
        self.view
            .latest(container)
            .filter(|instance| instance.is_alive())
            .map(|instance: &Instance| instance.id.clone())
    }
}
