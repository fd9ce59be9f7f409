//! What a pod waits for before it is admitted: the end of pods that are preempted for it, and the
//! devices of plugins.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::node::admission::{self, preemption};
use agent_plan::pod::{lifecycle, pods};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;
use tracing::warn;

use super::Worker;
use super::mailbox::Mailbox;
use super::refusal;
use crate::client::events::Kind;
use crate::context::Context;

/// Shortest time to wait for a preempted pod.
const LEAST: Duration = Duration::from_secs(10);

/// Returns the pods that are preempted for another one, and counts them in a metric.
pub(super) fn counted(context: &Context, pod: &Pod, others: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    if !others.is_empty() {
        let resource = preemption::signal(pod, &context.host(pod));
        context.preempted.count(resource, others.len());
    }
    others
}

impl Worker {
    /// Pods that must end before this one starts.
    pub(crate) fn preempts(&self) -> &[Arc<Pod>] {
        &self.preempts
    }

    /// Waits until the preempted pods have ended, or until this one is to end; handles messages
    /// meanwhile.
    pub(super) async fn wait_for_room(&mut self, inputs: &Mailbox) {
        let (context, preempted) = (Arc::clone(&self.context), std::mem::take(&mut self.preempts));
        self.hear_until(inputs, end_of(&context, &preempted)).await;
    }

    /// Gives devices of plugins to a pod that is admitted now. One that cannot have them is
    /// rejected.
    pub(super) async fn allocate_devices(&mut self, inputs: &Mailbox) {
        let status = self.pod.status.as_ref();
        let admitted = status.is_some_and(|status| status.start_time.is_some()) || self.view.any_alive();
        let ends = self.gone || pods::deletion_grace(&self.pod).is_some() || pods::terminal_phase(&self.pod).is_some();
        if admitted || ends || self.view.rejection.is_some() {
            return;
        }
        let (context, pod) = (Arc::clone(&self.context), Arc::clone(&self.pod));
        // As upstream's, devices of a pod that is gone from the API are free; one that is preempted runs on.
        let gone = |known: &Pod| context.is_discounted(known) && !context.preempted.has(pods::uid(known));
        let ended = |known: &Pod| pods::terminal_phase(known).is_some() || gone(known);
        for ended in context.known_pods().iter().filter(|known| ended(known)) {
            context.devices.release(pods::uid(ended));
        }
        let given = Box::pin(context.devices.allocate(&pod));
        if let Some(Err(why)) = self.hear_until(inputs, given).await {
            context.devices.release(pods::uid(&pod));
            let rejection = admission::without_devices(&why);
            refusal::tell(&context, &pod, &rejection);
            self.view.rejection = Some(rejection);
        }
    }

    /// Handles messages until something is done; `None` if the pod is to end before.
    async fn hear_until<T>(&mut self, inputs: &Mailbox, waiting: impl Future<Output = T>) -> Option<T> {
        let mut waiting = pin!(waiting);
        loop {
            tokio::select! {
                biased;
                input = inputs.next() => {
                    let now = self.now();
                    self.hear(input);
                    let deleted = self.gone || pods::deletion_grace(&self.pod).is_some();
                    if deleted || lifecycle::end(&self.pod, &self.view, now).is_some() {
                        return None;
                    }
                }
                done = &mut waiting => return Some(done),
            }
        }
    }

    /// Notifies waiting pods that all processes of this pod have ended.
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

/// Waits for preempted pods, for one and a half grace periods; then the critical pod is admitted
/// anyway.
async fn end_of(context: &Context, preempted: &[Arc<Pod>]) {
    let patience = |pod: &Arc<Pod>| {
        let grace = Duration::from_secs(u64::try_from(pods::grace(pod)).unwrap_or_default());
        (grace + grace / 2).max(LEAST)
    };
    let Some(longest) = preempted.iter().map(patience).max() else {
        return;
    };
    if timeout(longest, context.preempted.gone(preempted)).await.is_ok() {
        return;
    }
    for pod in preempted.iter().filter(|pod| context.preempted.has(pods::uid(pod))) {
        warn!(pod = pods::name(pod), "a preempted pod has not ended in time");
        let message = "Container runtime did not kill the pod within specified grace period.".to_owned();
        let recorder = &context.recorder;
        recorder.pod(pod, None, Kind::Warning, "ExceededGracePeriod", message);
    }
}
