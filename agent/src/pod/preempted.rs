//! Pods that are preempted for a critical one, which waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

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
    pub(crate) async fn gone(&self, all: &[Arc<Pod>]) {
        let mut running = self.running.subscribe();
        let gone = |running: &BTreeSet<String>| !all.iter().any(|pod| running.contains(pods::uid(pod)));
        // The sender is held here, so the channel is never closed.
        running.wait_for(gone).await.ok();
    }
}
