//! Status updates: one request at a time, with changes only, immediately if urgent.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::observed::Sandbox;
use agent_plan::pod::pods::Policy;
use agent_plan::pod::{lifecycle, patch, pods, status};
use agent_plan::shift;
use agent_plan::{Timestamp, later};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::SignedDuration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{Done, Worker, version};
use crate::pod::milestones::Step;

/// Time for which changes that are not urgent are batched; longer, with checks at the given
/// interval, while urgent pods are in progress.
const GATHER_MILLISECONDS: i64 = 50;
const LONGEST_GATHER_MILLISECONDS: i64 = 1_000;
const LOOK_MILLISECONDS: i64 = 200;
const FIRST_RETRY_MILLISECONDS: i64 = 100;
const LONGEST_RETRY_MILLISECONDS: i64 = 10_000;
/// Longest time that a removal waits for the status to be acknowledged.
const TIMEOUT: Duration = Duration::from_secs(5);

/// State of the status in the API.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    in_flight: bool,
    /// The update in progress is urgent.
    pressing: bool,
    /// `resourceVersion` of the pod when the last request was sent.
    sent_at: Option<String>,
    /// Time of the first change that is not sent yet.
    gathering_since: Option<Timestamp>,
    retry: Option<(Timestamp, i64)>,
    /// True once the API server has acknowledged the latest status.
    current: watch::Sender<bool>,
    /// True once the pod runs.
    runs: bool,
    /// Number of failures of the sandbox that is being created.
    pub(super) sandbox_failures: u32,
}

impl Publisher {
    /// Waits until the API server has acknowledged the current state, with a timeout.
    pub(super) fn heard(&self) -> impl Future<Output = ()> + Send + use<> {
        self.current.send_replace(false);
        let mut current = self.current.subscribe();
        async move {
            drop(tokio::time::timeout(TIMEOUT, current.wait_for(|current| *current)).await);
        }
    }

    /// True if an urgent update is in progress.
    pub(super) fn is_pressing(&self) -> bool {
        self.in_flight && self.pressing
    }

    /// See [`agent_plan::pod::shift`].
    pub(super) fn shift(&mut self, step: SignedDuration) {
        shift(&mut self.gathering_since, step);
        shift(self.retry.as_mut().map(|(until, _)| until), step);
    }
}

impl Worker {
    /// Sends the status if it changed; returns when to check again.
    pub(super) fn publish(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.gone {
            // The pod is deleted: there is no status to update.
            self.publisher.current.send_replace(true);
            return None;
        }
        if self.publisher.in_flight {
            return None;
        }
        if let Some((until, _)) = self.publisher.retry
            && now < until
        {
            return Some(until);
        }
        let new = status::build(&self.pod, &self.view, &self.context.scheme(), now);
        let old = self.pod.status.clone().unwrap_or_default();
        let is_replaced = old.phase == new.phase && lifecycle::replaces_container(&self.pod, &self.view);
        let is_awaited = !self.context.recorder.is_crowded() || !starts_briefly(&self.pod, &old, &new);
        let pressing = !is_replaced && is_awaited && matters(&old, &new);
        // The patch is not made before it is sent, except to find that there is one.
        let begun = self.publisher.gathering_since.filter(|_| !pressing && old != new);
        if let Some(until) = begun.and_then(|since| self.gathers(since, is_replaced, now)) {
            return Some(until);
        }
        let Some(change) = patch::status(pods::uid(&self.pod), &old, &new) else {
            self.publisher.current.send_replace(true);
            self.publisher.gathering_since = None;
            return None;
        };
        self.publisher.current.send_replace(false);
        if !pressing {
            let since = *self.publisher.gathering_since.get_or_insert(now);
            if let Some(until) = self.gathers(since, is_replaced, now) {
                return Some(until);
            }
        }
        self.publisher.gathering_since = None;
        self.publisher.in_flight = true;
        self.publisher.pressing = pressing;
        self.publisher.sent_at.clone_from(&self.pod.metadata.resource_version);
        self.count_start(&old, &new, now);
        if ready(&new) {
            self.context.reached(pods::uid(&self.pod), Step::Ready);
        }
        debug!(pod = %self.id(), %change, "status");
        let api: Api<Pod> = Api::namespaced(self.context.parts.client.clone(), pods::namespace(&self.pod));
        let name = pods::name(&self.pod).to_owned();
        self.tasks.spawn(async move {
            let patched = api
                .patch_status(&name, &PatchParams::default(), &Patch::Strategic(change))
                .await;
            Done::Published(Box::new(patched))
        });
        self.show_pull_back_off();
        None
    }

    /// Counts a pod that begins to run (`SyncPod`, `pkg/kubelet/kubelet.go`), once.
    fn count_start(&mut self, old: &PodStatus, new: &PodStatus, now: Timestamp) {
        let runs = |status: &PodStatus| status.phase.as_deref() == Some("Running");
        if !runs(new) || std::mem::replace(&mut self.publisher.runs, true) || runs(old) {
            return;
        }
        let times = self.context.milestones.of(pods::uid(&self.pod));
        if let Some(seen) = times.get(&Step::Seen) {
            let took = Duration::try_from(now.duration_since(*seen));
            self.context.operations.pod_started(took.unwrap_or_default());
        }
    }

    /// Returns when to check again while changes that are not urgent are batched, the first of them
    /// at `since`.
    fn gathers(&self, since: Timestamp, is_replaced: bool, now: Timestamp) -> Option<Timestamp> {
        let longest = later(since, LONGEST_GATHER_MILLISECONDS);
        // As the kubelet, which does both between two looks at its containers.
        let short = later(since, GATHER_MILLISECONDS);
        let until = if is_replaced { longest } else { short };
        if now < until {
            return Some(until);
        }
        let is_busy = now < longest && self.context.recorder.is_urgent();
        is_busy.then(|| later(now, LOOK_MILLISECONDS).min(longest))
    }

    pub(super) fn published(&mut self, outcome: Result<Pod, kube::Error>) {
        self.publisher.in_flight = false;
        match outcome {
            Ok(pod) if pod.metadata.resource_version == self.publisher.sent_at => {
                // The update had no effect, so an immediate retry would have none either.
                let delay = self.hold_back();
                warn!(pod = %self.id(), delay, "the stored status stays as it was; it will be tried again");
            }
            Ok(pod) => {
                self.publisher.retry = None;
                // The watch may have delivered this version already: then that one is kept, which
                // others share.
                if version(&pod) > version(&self.pod) {
                    self.see(Arc::new(pods::kept(pod)));
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                // The watch is about to report the deletion, or another pod has the name.
                let until = later(self.context.now(), LONGEST_RETRY_MILLISECONDS);
                self.publisher.retry = Some((until, LONGEST_RETRY_MILLISECONDS));
                self.publisher.current.send_replace(true);
            }
            // The pod is gone, so its status would never be accepted.
            Err(kube::Error::Api(status)) if self.view.sandbox == Sandbox::Removed && is_refusal(&status) => {
                warn!(pod = %self.id(), code = status.code, "the final status is refused");
                self.publisher.retry = None;
                self.publisher.current.send_replace(true);
            }
            Err(error) => {
                let delay = self.hold_back();
                warn!(pod = %self.id(), %error, delay, "the status could not be stored; it will be tried again");
            }
        }
    }

    /// Delays the next request, twice as long each time; returns the delay in milliseconds.
    fn hold_back(&mut self) -> i64 {
        let delay = self.publisher.retry.map_or(FIRST_RETRY_MILLISECONDS, |(_, delay)| {
            (delay * 2).min(LONGEST_RETRY_MILLISECONDS)
        });
        self.publisher.retry = Some((later(self.context.now(), delay), delay));
        delay
    }

    /// Records that the API has the final status. Returns whether that is new.
    pub(super) fn settle_final_status(&mut self) -> bool {
        let settled =
            *self.publisher.current.borrow() && !self.publisher.in_flight && self.view.sandbox == Sandbox::Removed;
        let news = settled && !self.view.final_status_stored;
        self.view.final_status_stored = settled;
        news
    }
}

/// True if the same status would be rejected again: it is invalid, or makes the pod too large.
fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 413 | 422) || (status.code == 500 && status.message.ends_with("request is too large"))
}

/// True if the change is urgent: the phase, or readiness.
fn matters(old: &PodStatus, new: &PodStatus) -> bool {
    let was_unset = old.start_time.is_none() && new.phase.as_deref() == Some("Pending");
    !was_unset && (old.phase != new.phase || ready(old) != ready(new))
}

/// True if the change is the start of a pod that is to end: it may have ended by the time that this
/// is stored. A kubelet looks at its containers once in a second (`pkg/kubelet/pleg/generic.go`),
/// and does not report what was between either.
fn starts_briefly(pod: &Pod, old: &PodStatus, new: &PodStatus) -> bool {
    pods::policy(pod) != Policy::Always && old.phase != new.phase && new.phase.as_deref() == Some("Running")
}

fn ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_start_of_what_is_to_end_may_wait() {
        let status = |phase: &str| -> PodStatus { serde_json::from_value(json!({"phase": phase})).unwrap() };
        for (policy, old, new, expected) in [
            ("Never", "Pending", "Running", true),
            ("OnFailure", "Pending", "Running", true),
            ("Always", "Pending", "Running", false),
            ("Never", "Running", "Running", false),
            ("Never", "Pending", "Succeeded", false),
            ("Never", "Running", "Failed", false),
        ] {
            let spec = json!({"restartPolicy": policy, "containers": []});
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            let found = starts_briefly(&pod, &status(old), &status(new));
            assert_eq!(found, expected, "{policy} {old} {new}");
        }
    }
}
