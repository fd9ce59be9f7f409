//! Pods that end to make room for others.

use std::sync::Arc;

use agent_plan::{Timestamp, lifecycle, pods};
use k8s_openapi::api::core::v1::Pod;

use super::Worker;

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
