//! In-place resize of running containers.

use std::sync::Arc;

use agent_plan::pod::observed::Sandbox;
use agent_plan::pod::pods;
use agent_plan::pod::resize::{self, Pending, Progress, Resources, Verdict, WHOLE};
use agent_plan::shift;
use agent_plan::{Timestamp, after, resources};
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::jiff::SignedDuration;
use runtime::{Limits, Runtime};
use tracing::{info, warn};

use super::{Done, Worker};
use crate::client::events::Kind;

/// Time until the next attempt after a failure, or without room.
const RETRY_SECONDS: i64 = 10;
/// Time until the next attempt if another pod has priority for the room.
const TURN_SECONDS: i64 = 1;

/// Progress of a resize.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// True while a resize is being applied.
    busy: bool,
    /// Time of the next attempt.
    again: Option<Timestamp>,
}

impl Turn {
    /// See [`agent_plan::pod::shift`].
    pub(super) fn shift(&mut self, step: SignedDuration) {
        shift(&mut self.again, step);
    }
}

/// New resources of a container.
struct Change {
    container: String,
    instance: String,
    resources: ResourceRequirements,
    limits: Limits,
}

/// All changes of a resize in a sandbox.
struct Changes {
    sandbox: String,
    whole: Limits,
    /// Resources at pod level.
    named: Option<ResourceRequirements>,
    containers: Vec<Change>,
}

/// Result of a resize: actual resources, and why the others were not changed.
pub(crate) struct Resized {
    given: Resources,
    failure: Option<String>,
}

/// Converts limits for the runtime; process and huge page limits do not change.
pub(crate) fn limits(own: &resources::Limits) -> Limits {
    Limits {
        cpu_shares: own.cpu_shares,
        cpu_quota: own.cpu_quota,
        cpu_period: own.cpu_quota.map(|_| resources::PERIOD),
        memory: own.memory,
        ..Limits::default()
    }
}

impl Worker {
    /// Records that a container starts with its allocated resources.
    pub(super) fn note_given(&mut self, container: &str) {
        if let Some(given) = self.view.allocated.get(container).cloned() {
            self.view.actual.insert(container.to_owned(), given);
        }
    }

    /// Returns the pod with its allocated resources.
    pub(super) fn given_pod(&self) -> Arc<Pod> {
        resize::given(&self.pod, &self.view.allocated).map_or_else(|| Arc::clone(&self.pod), Arc::new)
    }

    /// Compares the pod's requested resources with the allocated ones.
    pub(super) fn consider_resize(&mut self) {
        self.resize.again = None;
        let (ends, now) = (
            self.view.rejection.is_some() || self.view.termination.is_some(),
            self.context.now(),
        );
        if ends || pods::deletion_grace(&self.pod).is_some() || pods::terminal_phase(&self.pod).is_some() {
            self.context.allocations.resizes.leave(pods::uid(&self.pod));
            return;
        }
        let wanted = resize::wanted(&self.pod);
        if resize::changed(&wanted, &self.view.allocated).next().is_none() {
            self.context.allocations.resizes.leave(pods::uid(&self.pod));
            self.view.resize_pending = None;
            self.carry_out_resize();
            return;
        }
        match resize::judge(&self.pod, &self.context.host(&self.pod)) {
            Verdict::Fits if self.is_anothers_turn(now) => {
                self.resize.again = Some(after(now, TURN_SECONDS));
                let message = "Pods that come first wait for the room that there is".to_owned();
                self.postpone("Deferred", "ResizeDeferred", message);
            }
            Verdict::Fits => self.grant(wanted),
            Verdict::Infeasible(message) => {
                self.context.allocations.resizes.leave(pods::uid(&self.pod));
                self.postpone("Infeasible", "ResizeInfeasible", message);
            }
            Verdict::Deferred(message) => {
                self.resize.again = Some(after(now, RETRY_SECONDS));
                self.context.allocations.resizes.wait(&self.pod, now);
                self.postpone("Deferred", "ResizeDeferred", message);
            }
        }
    }

    /// True if a pod with higher priority waits for the available room. A pod that does not request
    /// more takes none.
    fn is_anothers_turn(&self, now: Timestamp) -> bool {
        let given = self.given_pod();
        if !resize::asks_for_more(&self.pod, &given) {
            return false;
        }
        let others = self.context.allocations.resizes.before(&self.pod, now);
        let mut fitting = others
            .iter()
            .filter(|other| resize::judge(other, &self.context.host(other)) == Verdict::Fits);
        let another = fitting.next().is_some();
        if another {
            self.context.allocations.resizes.wait(&self.pod, now);
        }
        another
    }

    /// Retries a resize when it is due; returns when that is.
    pub(super) fn retry_resize(&mut self, now: Timestamp) -> Option<Timestamp> {
        let due = self.resize.again?;
        if now >= due {
            self.consider_resize();
        }
        self.resize.again
    }

    fn grant(&mut self, wanted: Resources) {
        let pod = Arc::clone(&self.pod);
        for container in pods::all_containers(&pod) {
            let running = self.view.is_running(&container.name);
            if running && resize::restarts(&pod, container, &self.view.allocated) {
                self.memory(&container.name).renewal = true;
            }
        }
        self.context.allocations.note(pods::uid(&pod), &wanted);
        self.context.allocations.resizes.leave(pods::uid(&pod));
        self.context.pods_changed.notify_one();
        self.tell_of_itself();
        self.view.allocated = wanted;
        self.view.resize_pending = None;
        self.view.resize_progress = Some(Progress {
            error: None,
            generation: pod.metadata.generation,
        });
        info!(pod = %self.id(), "other resources are granted");
        let message = resize::message("started", &pod, None);
        self.context
            .recorder
            .pod(&pod, None, Kind::Normal, "ResizeStarted", message);
        self.carry_out_resize();
    }

    fn postpone(&mut self, reason: &'static str, event: &'static str, message: String) {
        let pending = Pending {
            reason,
            message,
            generation: self.pod.metadata.generation,
        };
        if self.view.resize_pending.as_ref() != Some(&pending) {
            let told = resize::message(reason, &self.pod, Some(&pending.message));
            self.context.recorder.pod(&self.pod, None, Kind::Warning, event, told);
        }
        self.view.resize_pending = Some(pending);
    }

    /// Applies the allocated resources, unless that is in progress.
    pub(super) fn carry_out_resize(&mut self) {
        if self.view.resize_progress.is_none()
            || self.resize.busy
            || !matches!(self.view.sandbox, Sandbox::Ready { .. })
        {
            return;
        }
        let pod = self.given_pod();
        let Some(spec) = &pod.spec else { return };
        let wanting: Vec<&str> = resize::changed(&self.view.allocated, &self.view.actual).collect();
        let mut containers = Vec::new();
        for container in pods::all_containers(&pod) {
            let name = &container.name;
            let renewed = self.view.memory.get(name).is_some_and(|memory| memory.renewal);
            let Some(instance) = self
                .view
                .latest(name)
                .filter(|_| self.view.is_running(name) && !renewed)
            else {
                continue;
            };
            // Containers without a limit of their own have the pod's.
            if wanting.contains(&name.as_str()) || wanting.contains(&WHOLE) {
                containers.push(Change {
                    container: name.clone(),
                    instance: instance.id.clone(),
                    resources: self.view.allocated.get(name).cloned().unwrap_or_default(),
                    limits: limits(&resources::container_limits(spec, container)),
                });
            }
        }
        let changes = Changes {
            sandbox: self.sandbox_id(),
            whole: limits(&resources::pod_limits(spec)),
            named: self.view.allocated.get(WHOLE).cloned(),
            containers,
        };
        self.resize.busy = true;
        let runtime = Arc::clone(&self.context.parts.runtime);
        self.tasks
            .spawn(async move { Done::Resized(carry_out(&*runtime, changes).await) });
    }

    pub(super) fn resized(&mut self, mut outcome: Resized) {
        self.resize.busy = false;
        let renews = self.view.memory.values().any(|memory| memory.renewal);
        if renews {
            // A restarted agent recognizes by it that containers still have to be restarted.
            outcome.given.remove(WHOLE);
        }
        self.view.actual.extend(outcome.given);
        let Some(progress) = &mut self.view.resize_progress else {
            return;
        };
        if let Some(failure) = outcome.failure {
            self.resize.again = Some(after(self.context.now(), RETRY_SECONDS));
            if progress.error.as_ref() != Some(&failure) {
                warn!(pod = %pods::name(&self.pod), failure, "other resources could not be given");
                let told = resize::message("error", &self.pod, Some(&failure));
                self.context
                    .recorder
                    .pod(&self.pod, None, Kind::Warning, "ResizeError", told);
                progress.error = Some(failure);
            }
            return;
        }
        // A container that is restarted gets the resources then, and reports it itself.
        if renews {
            return;
        }
        let starts = |name: &str| self.view.memory.get(name).is_some_and(|memory| memory.starting);
        if resize::changed(&self.view.allocated, &self.view.actual).any(starts) {
            // It starts with what it had, and gets the rest then.
            return;
        }
        let left = resize::changed(&self.view.allocated, &self.view.actual)
            .filter(|name| *name == WHOLE || self.view.is_running(name))
            .count();
        if left > 0 {
            // Resizes that were allocated meanwhile.
            self.carry_out_resize();
            return;
        }
        self.view.resize_progress = None;
        let message = resize::message("completed", &self.given_pod(), None);
        self.context
            .recorder
            .pod(&self.pod, None, Kind::Normal, "ResizeCompleted", message);
    }
}

/// Order: raise the pod's limits first, then each container, then the pod's final limits.
async fn carry_out(runtime: &dyn Runtime, changes: Changes) -> Resized {
    let mut given = Resources::new();
    let sandbox = changes.sandbox.as_str();
    let failed = |given: Resources, failure: String| Resized {
        given,
        failure: Some(failure),
    };
    for change in &changes.containers {
        let used = runtime.usage(Some((sandbox, Some(&change.instance)))).working_set;
        let used = used.and_then(|used| i64::try_from(used).ok()).unwrap_or(0);
        if let Some(limit) = change.limits.memory.filter(|limit| *limit < used) {
            let name = &change.container;
            let failure =
                format!("attempting to set container \"{name}\" memory limit ({limit}) below current usage ({used})");
            return failed(given, failure);
        }
    }
    let free = Limits {
        cpu_shares: changes.whole.cpu_shares,
        ..Limits::default()
    };
    if let Err(error) = runtime.limit(sandbox, None, free).await {
        return failed(given, image::chain(&error));
    }
    let mut failure = None;
    for change in changes.containers {
        match runtime.limit(sandbox, Some(&change.instance), change.limits).await {
            Ok(()) => drop(given.insert(change.container, change.resources)),
            Err(error) => failure = failure.or_else(|| Some(image::chain(&error))),
        }
    }
    match runtime.limit(sandbox, None, changes.whole).await {
        Ok(()) => given.extend(changes.named.map(|named| (WHOLE.to_owned(), named))),
        Err(error) => failure = failure.or_else(|| Some(image::chain(&error))),
    }
    Resized { given, failure }
}
