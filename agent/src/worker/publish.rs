//! Telling the API: one request at a time, only what changed, at once when it matters.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::observed::Sandbox;
use agent_plan::shift::shift;
use agent_plan::{Timestamp, later, patch, pods, status};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::SignedDuration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{Done, Worker, version};
use crate::milestones::Step;

/// Changes that nobody waits for are gathered for so long; longer, looked at so often, while pods are under way that somebody
/// waits for.
const GATHER_MILLISECONDS: i64 = 50;
const LONGEST_GATHER_MILLISECONDS: i64 = 1_000;
const LOOK_MILLISECONDS: i64 = 200;
const FIRST_RETRY_MILLISECONDS: i64 = 100;
const LONGEST_RETRY_MILLISECONDS: i64 = 10_000;
/// What is to be removed once the API has heard of it waits no longer for that.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the status in the API.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    in_flight: bool,
    /// Somebody waits for what is in flight.
    pressing: bool,
    /// The pod's resourceVersion when the last request was sent.
    sent_at: Option<String>,
    /// When the first change came that is not sent yet.
    gathering_since: Option<Timestamp>,
    retry: Option<(Timestamp, i64)>,
    /// Whether the API has heard of everything.
    current: watch::Sender<bool>,
    /// How often the sandbox that is being made failed before.
    pub(super) sandbox_failures: u32,
}

impl Publisher {
    /// Waits until the API has heard of what is known now, as far as it answers soon.
    pub(super) fn heard(&self) -> impl Future<Output = ()> + Send + use<> {
        self.current.send_replace(false);
        let mut current = self.current.subscribe();
        async move {
            drop(tokio::time::timeout(PATIENCE, current.wait_for(|current| *current)).await);
        }
    }

    /// Whether the API is being told what somebody waits for.
    pub(super) fn is_pressing(&self) -> bool {
        self.in_flight && self.pressing
    }

    /// See [`agent_plan::shift`].
    pub(super) fn shift(&mut self, step: SignedDuration) {
        shift(&mut self.gathering_since, step);
        shift(self.retry.as_mut().map(|(until, _)| until), step);
    }
}

impl Worker {
    /// Sends the status if it changed; answers when to look again.
    pub(super) fn publish(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.gone {
            // Nobody is to be told any more.
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
        let Some(change) = patch::status(pods::uid(&self.pod), &old, &new) else {
            self.publisher.current.send_replace(true);
            self.publisher.gathering_since = None;
            return None;
        };
        self.publisher.current.send_replace(false);
        let pressing = matters(&old, &new);
        if !pressing {
            let since = *self.publisher.gathering_since.get_or_insert(now);
            let (until, longest) = (
                later(since, GATHER_MILLISECONDS),
                later(since, LONGEST_GATHER_MILLISECONDS),
            );
            if now < until {
                return Some(until);
            }
            if now < longest && self.context.recorder.is_urgent() {
                return Some(later(now, LOOK_MILLISECONDS).min(longest));
            }
        }
        self.publisher.gathering_since = None;
        self.publisher.in_flight = true;
        self.publisher.pressing = pressing;
        self.publisher.sent_at.clone_from(&self.pod.metadata.resource_version);
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

    pub(super) fn published(&mut self, outcome: Result<Pod, kube::Error>) {
        self.publisher.in_flight = false;
        match outcome {
            Ok(pod) if pod.metadata.resource_version == self.publisher.sent_at => {
                // Nothing was changed by it, so the same again would change nothing.
                let delay = self.hold_back();
                warn!(pod = %self.id(), delay, "the stored status stays as it was; it will be tried again");
            }
            Ok(pod) => {
                self.publisher.retry = None;
                // The watch may have told of it already: then that one is kept, which others hold too.
                if version(&pod) > version(&self.pod) {
                    self.see(Arc::new(pods::kept(pod)));
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                // The watch is about to say so too, or another pod has the name.
                let until = later(self.context.now(), LONGEST_RETRY_MILLISECONDS);
                self.publisher.retry = Some((until, LONGEST_RETRY_MILLISECONDS));
                self.publisher.current.send_replace(true);
            }
            // Nobody would ever be told of a pod that is gone already.
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

    /// Waits before the next request, twice as long each time; answers how many milliseconds.
    fn hold_back(&mut self) -> i64 {
        let delay = self.publisher.retry.map_or(FIRST_RETRY_MILLISECONDS, |(_, delay)| {
            (delay * 2).min(LONGEST_RETRY_MILLISECONDS)
        });
        self.publisher.retry = Some((later(self.context.now(), delay), delay));
        delay
    }

    /// Notes when the API has the status that will never change again. Answers whether that is news.
    pub(super) fn settle_final_status(&mut self) -> bool {
        let settled =
            *self.publisher.current.borrow() && !self.publisher.in_flight && self.view.sandbox == Sandbox::Removed;
        let news = settled && !self.view.final_status_stored;
        self.view.final_status_stored = settled;
        news
    }
}

/// Whether the same status would be refused again: what it says cannot be, or the pod becomes too large by it.
fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 413 | 422) || (status.code == 500 && status.message.ends_with("request is too large"))
}

/// Whether somebody waits for this change: the phase, readiness, or the address.
fn matters(old: &PodStatus, new: &PodStatus) -> bool {
    let was_unset = old.start_time.is_none() && new.phase.as_deref() == Some("Pending");
    !was_unset && (old.phase != new.phase || ready(old) != ready(new))
}

fn ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
