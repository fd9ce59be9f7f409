//! Whether the node takes a pod, and who makes room for it.

use std::sync::Arc;

use agent_plan::observed::Rejection;
use agent_plan::{Timestamp, lifecycle, pods};
use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

use super::Worker;
use crate::context::Context;
use crate::events::Kind;

/// Tells of a pod that the node does not take.
pub(super) fn refuse(context: &Context, pod: &Pod, rejection: &Rejection) {
    let (reason, message) = (rejection.reason.clone(), &rejection.message);
    warn!(pod = pods::name(pod), %reason, message, "refused");
    let message = message.trim_start_matches("Pod was rejected: ").to_owned();
    context.recorder.pod(pod, None, Kind::Warning, reason, message);
    context.discount(pods::uid(pod));
}

impl Worker {
    /// The pods that have to end before this one begins.
    pub(crate) fn preempts(&self) -> &[Arc<Pod>] {
        &self.preempts
    }

    /// Tells who waits for this pod's end that nothing of it runs any more.
    pub(super) fn give_room(&self, now: Timestamp) {
        let uid = pods::uid(&self.pod);
        if !self.context.preempted.has(uid) || self.view.any_alive() {
            return;
        }
        if self.gone || lifecycle::end(&self.pod, &self.view, now).is_some() {
            self.context.preempted.over(uid);
        }
    }
}
