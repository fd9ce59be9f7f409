//! Pods that end so that a critical one has room, which waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::context::Context;
use crate::events::Kind;

/// The shortest time that a pod is waited for.
const LEAST: Duration = Duration::from_secs(10);

/// The uids of those that were told to end and of which something may still run.
#[derive(Debug, Default)]
pub(crate) struct Preempted(watch::Sender<BTreeSet<String>>);

impl Preempted {
    pub(crate) fn begin(&self, uid: &str) {
        self.0.send_modify(|all| {
            all.insert(uid.to_owned());
        });
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.0.borrow().contains(uid)
    }

    /// Nothing of it runs any more.
    pub(crate) fn over(&self, uid: &str) {
        self.0.send_if_modified(|all| all.remove(uid));
    }

    /// Waits until none of these pods runs.
    async fn gone(&self, all: &[Arc<Pod>]) {
        let mut running = self.0.subscribe();
        let gone = |running: &BTreeSet<String>| !all.iter().any(|pod| running.contains(pods::uid(pod)));
        // It cannot be closed: its other end is here.
        running.wait_for(gone).await.ok();
    }
}

impl Context {
    /// Waits for pods that were told to end, for their grace periods and half of these; then the pod that waits takes its place all
    /// the same.
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
