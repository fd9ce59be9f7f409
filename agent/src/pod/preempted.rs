//! Pods that are preempted for a critical one, which waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::client::events::Kind;
use crate::context::Context;

/// Shortest time to wait for a pod.
const LEAST: Duration = Duration::from_secs(10);

/// UIDs of preempted pods that may still be running.
#[derive(Debug, Default)]
pub(crate) struct Preempted {
    running: watch::Sender<BTreeSet<String>>,
    /// Number of preempted pods so far, by the resource that was insufficient.
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Preempted {
    /// Counts pods that are preempted for a resource.
    pub(crate) fn count(&self, resource: String, pods: usize) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(resource).or_default();
        *count = count.saturating_add(u64::try_from(pods).unwrap_or(u64::MAX));
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin(&self, uid: &str) {
        self.running.send_modify(|all| {
            all.insert(uid.to_owned());
        });
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.running.borrow().contains(uid)
    }

    /// The pod's processes have all ended.
    pub(crate) fn over(&self, uid: &str) {
        self.running.send_if_modified(|all| all.remove(uid));
    }

    /// Waits until none of these pods runs.
    async fn gone(&self, all: &[Arc<Pod>]) {
        let mut running = self.running.subscribe();
        let gone = |running: &BTreeSet<String>| !all.iter().any(|pod| running.contains(pods::uid(pod)));
        // The sender is held here, so the channel is never closed.
        running.wait_for(gone).await.ok();
    }
}

impl Context {
    /// Waits for preempted pods, for one and a half grace periods; then the critical pod is
    /// admitted anyway.
    pub(crate) async fn wait_for_room(&self, preempted: &[Arc<Pod>]) {
        let patience = |pod: &Arc<Pod>| {
            let grace = Duration::from_secs(u64::try_from(pods::grace(pod)).unwrap_or_default());
            (grace + grace / 2).max(LEAST)
        };
        let Some(longest) = preempted.iter().map(patience).max() else {
            return;
        };
        if timeout(longest, self.preempted.gone(preempted)).await.is_ok() {
            return;
        }
        for pod in preempted.iter().filter(|pod| self.preempted.has(pods::uid(pod))) {
            warn!(pod = pods::name(pod), "a preempted pod has not ended in time");
            let message = "Container runtime did not kill the pod within specified grace period.".to_owned();
            self.recorder
                .pod(pod, None, Kind::Warning, "ExceededGracePeriod", message);
        }
    }
}
