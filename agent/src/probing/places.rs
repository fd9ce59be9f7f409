//! How many attempts of a pod over the network are under way at a time: each has a descriptor of the agent's for as long as
//! the pod says. What pods share of the node's would be taken by the first ones whose servers never answer, so each has its
//! own, and a node has as many as its pods.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

const OF_POD: usize = 16;

/// The attempts of one pod.
#[derive(Clone)]
pub(crate) struct Places(Arc<Semaphore>);

/// Room for one attempt, until it is dropped.
pub(crate) struct Place<'a>(#[expect(dead_code, reason = "it is held")] SemaphorePermit<'a>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(OF_POD)))
    }
}

impl Places {
    /// Waits for room, in turn, for so long.
    pub(crate) async fn take(&self, patience: Duration) -> Option<Place<'_>> {
        let taken = tokio::time::timeout(patience, self.0.acquire()).await;
        taken.ok()?.ok().map(Place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_waits_for_answers_keeps_none_of_others_room() {
        let pods: Vec<Places> = (0..200).map(|_| Places::default()).collect();
        let mut held = Vec::new();
        for pod in &pods {
            for _ in 0..OF_POD {
                held.push(pod.take(PATIENCE).await.unwrap());
            }
        }
        // More of a pod's wait and are given up; a new pod has its own.
        assert!(pods[0].take(PATIENCE).await.is_none());
        assert!(Places::default().take(PATIENCE).await.is_some());
        // Who waits is next.
        let (next, ()) = tokio::join!(pods[0].take(PATIENCE), async { held.clear() });
        assert!(next.is_some());
    }
}
