//! Limits of a pod's concurrent network probes: each holds a descriptor of the agent for up to its
//! timeout. A limit shared by the node would be exhausted by pods whose servers never answer, so
//! each pod has its own, and the node's total is their sum.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

const OF_POD: usize = 16;

/// Limit on the attempts of one pod.
#[derive(Clone)]
pub(crate) struct Places(Arc<Semaphore>);

/// Permit for one attempt, held until it is dropped.
pub(crate) struct Place<'a>(#[expect(dead_code, reason = "it is held")] SemaphorePermit<'a>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(OF_POD)))
    }
}

impl Places {
    /// Waits for a permit, in order, for at most `patience`.
    pub(crate) async fn take(&self, patience: Duration) -> Option<Place<'_>> {
        let taken = tokio::time::timeout(patience, self.0.acquire()).await;
        taken.ok()?.ok().map(Place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_waits_for_answers_keeps_none_of_others_room() {
        let pods: Vec<Places> = (0..200).map(|_| Places::default()).collect();
        let mut held = Vec::new();
        for pod in &pods {
            for _ in 0..OF_POD {
                held.push(pod.take(TIMEOUT).await.unwrap());
            }
        }
        // Further attempts of the same pod time out; a new pod has a limit of its own.
        assert!(pods[0].take(TIMEOUT).await.is_none());
        assert!(Places::default().take(TIMEOUT).await.is_some());
        // The waiting task is next.
        let (next, ()) = tokio::join!(pods[0].take(TIMEOUT), async { held.clear() });
        assert!(next.is_some());
    }
}
