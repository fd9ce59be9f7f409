//! Starts of containers, and their results.

use std::sync::Arc;

use agent_plan::pod::observed::{self, Instance, Sandbox, State};
use agent_plan::pod::pods;
use agent_plan::pod::probe::{Kind as ProbeKind, Probe};
use agent_plan::{Timestamp, after};
use tracing::{info, warn};

use super::launch;
use super::plan::{Plan, Started};
use super::unstarted::Failure;
use crate::client::events::Kind;
use crate::pod::worker::{Done, Hook, Worker, adopt};

const RETRY_SECONDS: i64 = 10;
const CONFIGURATION_RETRY_SECONDS: i64 = 3;
const LOST_RETRY_SECONDS: i64 = 1;

impl Worker {
    /// Returns the plan to start a container; `None` while its image is not present.
    pub(in crate::pod::worker) fn plan(&self, container: &str, attempt: u32) -> Option<Plan> {
        let image = self.images.get(container).cloned()?;
        let wanted = pods::container(&self.pod, container);
        let shown = wanted.iter().flat_map(|wanted| pods::image_volumes(&self.pod, wanted));
        let volume_images = shown
            .filter_map(|(volume, _)| Some((volume.to_owned(), self.volume_images.get(volume).cloned()?)))
            .collect();
        let addresses = match &self.view.sandbox {
            Sandbox::Ready { addresses } => addresses.clone(),
            Sandbox::Absent | Sandbox::Preparing | Sandbox::Failed { .. } | Sandbox::Removing | Sandbox::Removed => {
                Vec::new()
            }
        };
        Some(Plan {
            context: Arc::clone(&self.context),
            pod: self.given_pod(),
            sandbox: self.sandbox_id(),
            image,
            volume_images,
            addresses,
            container: container.to_owned(),
            attempt,
            creation_lock: Arc::clone(&self.creation_lock),
            target: pods::target(&self.pod, container).map(|target| {
                let running = self.view.latest(target).filter(|_| self.view.is_running(target));
                let missing = || format!("unable to find target container {target}");
                running.map(|instance| instance.id.clone()).ok_or_else(missing)
            }),
        })
    }

    pub(in crate::pod::worker) fn start(&mut self, container: &str, attempt: u32) {
        let Some(plan) = self.plan(container, attempt).map(Arc::new) else {
            self.memory(container).image = observed::Image::Unknown;
            return;
        };
        let draft = self.take_draft(&plan);
        self.note_given(container);
        self.tell_present(container);
        let memory = self.memory(container);
        memory.starting = true;
        memory.failure = None;
        self.context.started.container(&self.pod, container);
        let container = container.to_owned();
        self.tasks.spawn(async move {
            let outcome = Box::pin(launch::run(&plan, draft)).await;
            Done::Started { container, outcome }
        });
    }

    pub(in crate::pod::worker) fn started(&mut self, container: &str, outcome: Result<Started, Failure>) {
        let wanted = pods::container(&self.pod, container);
        let asked = |code| wanted.as_ref().is_some_and(|wanted| pods::restarts_all(wanted, code));
        let latest = self.view.latest(container);
        let ended = latest.and_then(|instance| Some((instance.reset, instance.exit()?)));
        // A container that was stopped by another container's restart rule is not backed off.
        let ended = ended.filter(|(reset, exit)| !reset || asked(exit.code));
        let finished = ended.map(|(_, exit)| exit.finished_at);
        let own = self.sandbox_id();
        let memory = self.memory(container);
        memory.starting = false;
        memory.image = observed::Image::Unknown;
        match outcome {
            Ok(Started {
                instance,
                sandbox,
                user,
            }) => {
                if let Some(finished) = finished {
                    memory.back_off = memory.back_off.next(finished);
                }
                self.view.users.extend(user.map(|user| (instance.id.clone(), user)));
                info!(pod = %self.id(), container, id = instance.id, attempt = instance.attempt, "container started");
                if sandbox != own {
                    return self.lost_meanwhile(container, instance);
                }
                let id = instance.id.clone();
                self.begin(container, instance);
                if let Some(exit) = self.early_exits.remove(&id) {
                    self.exited(&id, &exit);
                }
            }
            Err(failure) => self.not_started(container, failure, finished),
        }
    }

    /// Handles a sandbox that was lost before the start of its container was reported.
    fn lost_meanwhile(&mut self, container: &str, mut instance: Instance) {
        let started_at = match &instance.state {
            State::Running { since } => Some(*since),
            State::Created | State::Exited(_) => None,
        };
        instance.lost = true;
        instance.state = State::Exited(adopt::unknown(self.context.now(), started_at));
        let instances = self.view.instances.entry(container.to_owned()).or_default();
        instances.push(instance);
    }

    fn not_started(&mut self, container: &str, failure: Failure, finished: Option<Timestamp>) {
        let now = self.context.now();
        self.context
            .started
            .container_failed(&self.pod, container, failure.reason);
        warn!(pod = %self.id(), container, reason = failure.reason, message = failure.message, "container not started");
        let message = format!("Error: {}", failure.message);
        self.context
            .recorder
            .pod(&self.pod, Some(container), Kind::Warning, "Failed", message);
        let memory = self.memory(container);
        if let Some(instance) = failure.instance {
            (memory.renewal, memory.revival) = (false, false);
            if let Some(finished) = finished {
                memory.back_off = memory.back_off.next(finished);
            }
            let exit = instance.exit().cloned();
            self.view
                .instances
                .entry(container.to_owned())
                .or_default()
                .push(*instance);
            if let Some(exit) = exit {
                self.tell_back_off(container, &exit);
            }
            return;
        }
        let seconds = match failure.reason {
            _ if failure.lost => LOST_RETRY_SECONDS,
            "CreateContainerConfigError" => CONFIGURATION_RETRY_SECONDS,
            _ => RETRY_SECONDS,
        };
        memory.failure = Some(observed::Failure {
            reason: failure.reason.to_owned(),
            message: failure.message,
            until: after(now, seconds),
        });
    }

    /// Handles a running instance: starts its probes and its postStart hook.
    fn begin(&mut self, container: &str, instance: Instance) {
        let since = match &instance.state {
            State::Running { since } => *since,
            State::Created | State::Exited(_) => self.context.now(),
        };
        let pod = Arc::clone(&self.pod);
        let wanted = pods::container(&pod, container);
        self.note_running(container, instance.attempt, &instance.id);
        let memory = self.memory(container);
        (memory.renewal, memory.revival) = (false, false);
        self.view
            .instances
            .entry(container.to_owned())
            .or_default()
            .push(instance);
        self.arm(container, since);
        self.carry_out_resize();
        let hooked = wanted.is_some_and(|wanted| {
            wanted
                .lifecycle
                .as_ref()
                .is_some_and(|hooks| hooks.post_start.is_some())
        });
        if hooked {
            self.memory(container).post_start = true;
            self.hook(container, Hook::PostStart);
        }
    }

    /// Resets the probes for an instance that runs since `since`.
    pub(in crate::pod::worker) fn arm(&mut self, container: &str, since: Timestamp) {
        let pod = Arc::clone(&self.pod);
        let Some(wanted) = pods::container(&pod, container) else {
            return;
        };
        let memory = self.memory(container);
        memory.stopping = None;
        memory.post_start = false;
        memory.startup = wanted
            .startup_probe
            .as_ref()
            .map(|probe| Probe::new(ProbeKind::Startup, probe, since));
        memory.readiness = wanted
            .readiness_probe
            .as_ref()
            .map(|probe| Probe::new(ProbeKind::Readiness, probe, since));
        memory.liveness = wanted
            .liveness_probe
            .as_ref()
            .map(|probe| Probe::new(ProbeKind::Liveness, probe, since));
    }
}
