//! Execution of the plan's actions.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::admission::preemption;
use agent_plan::node::eviction;
use agent_plan::pod::action::{Action, Why};
use agent_plan::pod::lifecycle::{End, LEAST_GRACE};
use agent_plan::pod::observed::{Instance, Memory, Sandbox, Stage, Stopping};
use agent_plan::pod::termination::Termination;
use agent_plan::pod::{lifecycle, pods, restart};
use agent_plan::{Timestamp, after, later};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tracing::{info, warn};

use super::sandbox::removal::{remove, remove_sandbox};
use super::{Done, Hook, Worker};
use crate::client::events::Kind;

const SIGKILL: i32 = 9;
const RETRY_MILLISECONDS: i64 = 1000;
/// Interval and number of attempts to send a signal while the runtime is unavailable, and the
/// interval of further attempts to send SIGKILL.
const RESEND: (Duration, u32, Duration) = (Duration::from_millis(500), 120, Duration::from_secs(10));

impl Worker {
    /// Starts an action; returns whether the plan should be evaluated again at once.
    pub(super) fn act(&mut self, action: Action, now: Timestamp) -> bool {
        match action {
            Action::Prepare => self.prepare(),
            Action::EnsureImage(container) => return self.ensure_image(&container),
            Action::Run { container, attempt } => self.start(&container, attempt),
            Action::Probe { container, kind } => self.probe(&container, kind, now),
            Action::Stop { container, why, grace } => self.stop(&container, why, grace, now),
            Action::Announce { container, grace } => {
                self.announce(&container, grace, now);
                return true;
            }
            Action::Turn(container) => self.proceed(&container, now),
            Action::Signal(container) => {
                self.stage(&container, Stage::Signalled, after(now, LEAST_GRACE));
                self.signal(&container, self.stop_signal(&container));
            }
            Action::Kill(container) => {
                self.stage(&container, Stage::Killed, now);
                self.signal(&container, SIGKILL);
            }
            Action::Hasten { container, deadline } => {
                if let Some(stopping) = &mut self.memory(&container).stopping {
                    stopping.deadline = deadline;
                }
                return true;
            }
            Action::Remove { container, id } => self.remove(&container, &id),
            Action::Reset => {
                self.reset();
                return true;
            }
            Action::TearDown => return self.tear_down(now),
            Action::Finish => self.finish(now),
        }
        false
    }

    /// Ends the pod, unless it has ended.
    pub(super) fn terminate(&mut self, termination: Termination) {
        if self.gone || lifecycle::end(&self.pod, &self.view, self.context.now()).is_some() {
            return;
        }
        if [eviction::REASON, preemption::REASON].contains(&termination.reason) {
            let (message, annotations) = (termination.message.clone(), termination.annotations.clone());
            let recorder = &self.context.recorder;
            recorder.annotated(&self.pod, Kind::Warning, termination.reason, message, annotations);
        }
        self.view.termination = Some(termination);
    }

    /// Records an event if the pod ends because of its `activeDeadlineSeconds`.
    fn tell_deadline(&self, now: Timestamp) {
        let end = lifecycle::end(&self.pod, &self.view, now);
        let Some(End { reason, message, .. }) = end else { return };
        if reason.as_deref() == Some(lifecycle::DEADLINE_EXCEEDED) {
            let (recorder, message) = (&self.context.recorder, message.unwrap_or_default());
            recorder.pod(&self.pod, None, Kind::Normal, lifecycle::DEADLINE_EXCEEDED, message);
        }
    }

    /// Removes all instances except the latest ones.
    pub(super) fn shed(&mut self) {
        let mut old = Vec::new();
        for (name, instances) in &self.view.instances {
            let surplus = instances.len().saturating_sub(1);
            let ended = instances.iter().take(surplus).filter(|instance| !instance.is_alive());
            old.extend(ended.map(|instance| (name.clone(), instance.id.clone())));
        }
        for (name, id) in old {
            self.remove(&name, &id);
        }
    }

    pub(super) fn memory(&mut self, container: &str) -> &mut Memory {
        self.view.memory.entry(container.to_owned()).or_default()
    }

    fn stage(&mut self, container: &str, stage: Stage, deadline: Timestamp) {
        self.memory(container).stopping = Some(Stopping { deadline, stage });
    }

    fn stop(&mut self, container: &str, why: Why, grace: i64, now: Timestamp) {
        if why == Why::Pod && self.view.winding_down.is_none() {
            self.view.winding_down = Some(now);
            self.tell_deadline(now);
        }
        self.tell_killing(container, why);
        match why {
            // Independent of the restart policy.
            Why::Image => self.memory(container).renewal = true,
            Why::Liveness | Why::Startup => {
                self.memory(container).revival = pods::revives(&self.pod, container);
            }
            Why::Pod | Why::PostStart | Why::Resize | Why::Rule => {}
        }
        let running = self.view.is_running(container);
        let hooked = running && grace > 0 && self.has_pre_stop(container);
        if hooked {
            self.stage(container, Stage::PreStop, after(now, grace));
            self.hook(container, Hook::PreStop);
        } else if running {
            self.stage(container, Stage::Signalled, after(now, grace.max(LEAST_GRACE)));
            self.signal(container, self.stop_signal(container));
        } else {
            self.stage(container, Stage::Killed, now);
            self.signal(container, SIGKILL);
        }
    }

    /// A sidecar is notified of its pod's end with all others; only its signal waits for its turn.
    fn announce(&mut self, container: &str, grace: i64, now: Timestamp) {
        if self.view.winding_down.is_none() {
            self.view.winding_down = Some(now);
            self.tell_deadline(now);
        }
        self.tell_killing(container, Why::Pod);
        let deadline = after(now, grace);
        if self.view.is_running(container) && self.has_pre_stop(container) {
            self.stage(container, Stage::PreStop, deadline);
            self.hook(container, Hook::PreStop);
        } else {
            self.stage(container, Stage::Waiting, deadline);
        }
    }

    fn has_pre_stop(&self, container: &str) -> bool {
        let found = pods::container(&self.pod, container);
        let hooks = found.as_ref().and_then(|container| container.lifecycle.as_ref());
        hooks.is_some_and(|hooks| hooks.pre_stop.is_some())
    }

    fn tell_killing(&self, container: &str, why: Why) {
        let message = why.told(container, pods::revives(&self.pod, container));
        self.context
            .recorder
            .pod(&self.pod, Some(container), Kind::Normal, "Killing", message);
    }

    /// Sends the signal after a preStop hook, if the container still waits for it.
    pub(super) fn after_pre_stop(&mut self, container: &str) {
        let in_turn = self.view.winding_down.is_some()
            && pods::container(&self.pod, container)
                .is_some_and(|container| pods::is_sidecar_of(&self.pod, &container));
        let Some(stopping) = &mut self.memory(container).stopping else {
            return;
        };
        if stopping.stage != Stage::PreStop {
            return;
        }
        if in_turn {
            stopping.stage = Stage::Waiting;
        } else {
            self.proceed(container, self.context.now());
        }
    }

    /// Sends the stop signal, with the rest of the grace period.
    fn proceed(&mut self, container: &str, now: Timestamp) {
        let least = after(now, LEAST_GRACE);
        if let Some(stopping) = &mut self.memory(container).stopping {
            stopping.stage = Stage::Signalled;
            stopping.deadline = stopping.deadline.max(least);
        }
        self.signal(container, self.stop_signal(container));
    }

    fn signal(&mut self, container: &str, signal: i32) {
        let Some(id) = self
            .view
            .latest(container)
            .filter(|instance| instance.is_alive())
            .map(|instance| instance.id.clone())
        else {
            return;
        };
        let (context, sandbox, pod) = (Arc::clone(&self.context), self.sandbox_id(), self.id());
        self.tasks.spawn(async move {
            let (pause, tries, seldom) = RESEND;
            for tried in 0_u32.. {
                let sent = context.parts.runtime.signal(&sandbox, &id, signal).await;
                failpoint::reach("signalled");
                let Err(error) = sent else { break };
                warn!(
                    pod,
                    container = id,
                    signal,
                    error = image::chain(&error),
                    "a signal could not be sent"
                );
                // SIGKILL is retried without limit: without it the process would run forever.
                if error.is_end() || (tried >= tries && signal != SIGKILL) {
                    break;
                }
                tokio::time::sleep(if tried < tries { pause } else { seldom }).await;
            }
            Done::Changed
        });
    }

    fn remove(&mut self, container: &str, id: &str) {
        let mut removed = None;
        if let Some(instances) = self.view.instances.get_mut(container)
            && let Some(index) = instances.iter().position(|instance| instance.id == id)
        {
            removed = Some(instances.remove(index));
            self.view.users.remove(id);
        }
        let Some(Instance {
            id,
            lost: false,
            attempt,
            ..
        }) = removed
        else {
            return;
        };
        let logs = &self.context.config.logs;
        logs.unlink(&self.pod, container, &id);
        let log = logs.of(&self.pod).join(container).join(format!("{attempt}.log"));
        let (context, sandbox) = (Arc::clone(&self.context), self.sandbox_id());
        self.tasks.spawn(async move {
            let removed = context.parts.runtime.remove_container(&sandbox, &id);
            if let Err(error) = context.operations.of_runtime("remove_container", removed).await {
                warn!(
                    container = id,
                    error = image::chain(&error),
                    "a container could not be removed"
                );
            }
            let rotated = runtime::rotated(&log).unwrap_or_default();
            for path in std::iter::once(log).chain(rotated) {
                match tokio::fs::remove_file(&path).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => warn!(path = %path.display(), %error, "a log could not be removed"),
                }
            }
            Done::Changed
        });
    }

    /// Removes sandbox, network and files. Returns whether it started.
    fn tear_down(&mut self, now: Timestamp) -> bool {
        if self.patience.is_some_and(|patience| now < patience) {
            return false;
        }
        self.patience = None;
        if let Sandbox::Ready { addresses } = std::mem::replace(&mut self.view.sandbox, Sandbox::Removing) {
            self.view.addresses = addresses;
        }
        let (context, sandbox, pod) = (Arc::clone(&self.context), self.sandbox_id(), Arc::clone(&self.pod));
        let earlier = self.earlier.clone();
        self.tasks.spawn(async move {
            let mut failures = Vec::new();
            for id in earlier {
                failures.extend(remove_sandbox(&context, &id).await.err());
            }
            failures.extend(remove(&context, &sandbox, pods::uid(&pod)).await.err());
            Done::TornDown(if failures.is_empty() {
                Ok(())
            } else {
                Err(failures.join("; "))
            })
        });
        false
    }

    pub(super) fn torn_down(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                info!(pod = %self.id(), "torn down");
                self.view.sandbox = Sandbox::Removed;
                self.earlier.clear();
                // Before the pod is deleted, and another one may come for its devices.
                self.context.devices.release(pods::uid(&self.pod));
            }
            Err(failures) => {
                warn!(pod = %self.id(), failures, "the tear-down is not complete; it will be tried again");
                let message = format!("error killing pod: {failures}");
                self.context
                    .recorder
                    .pod(&self.pod, None, Kind::Warning, "FailedKillPod", message);
                self.view.sandbox = Sandbox::Failed {
                    until: Timestamp::MAX,
                    failures: 0,
                };
                self.patience = Some(later(self.context.now(), RETRY_MILLISECONDS));
            }
        }
    }

    /// Deletes the pod from the API, with its UID as a precondition.
    fn finish(&mut self, now: Timestamp) {
        if self.finishing || self.patience.is_some_and(|patience| now < patience) {
            return;
        }
        self.finishing = true;
        let api: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.context.parts.client.clone(), pods::namespace(&self.pod));
        let name = pods::name(&self.pod).to_owned();
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: self.pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default().grace_period(0)
        };
        self.tasks.spawn(async move {
            failpoint::reach("finishing");
            Done::Finished(api.delete(&name, &parameters).await.map(|_| ()))
        });
    }

    pub(super) fn finished(&mut self, outcome: Result<(), kube::Error>) {
        self.finishing = false;
        match outcome {
            Ok(()) => self.gone = true,
            // Another pod has the name, or none: this pod is gone.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => self.gone = true,
            Err(error) => {
                warn!(pod = %self.id(), %error, "the pod could not be deleted; it will be tried again");
                self.patience = Some(later(self.context.now(), RETRY_MILLISECONDS));
            }
        }
    }

    /// Records that the sandbox could not be created.
    pub(super) fn sandbox_failed(&mut self, failures: u32) {
        let until = later(self.context.now(), restart::sandbox_delay_milliseconds(failures));
        self.view.sandbox = Sandbox::Failed {
            until,
            failures: failures.saturating_add(1),
        };
    }
}
