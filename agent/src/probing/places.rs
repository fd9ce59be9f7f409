//! How many attempts over the network are under way at a time: each has a descriptor of the agent's for as long as the pod says.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Of one pod.
const OF_POD: usize = 64;
/// Of all pods.
static OF_NODE: Semaphore = Semaphore::const_new(1024);

/// The attempts of one pod.
#[derive(Clone)]
pub(crate) struct Places {
    own: Arc<Semaphore>,
    all: &'static Semaphore,
}

/// Room for one attempt, until it is dropped.
pub(crate) struct Place<'a> {
    _own: SemaphorePermit<'a>,
    _all: SemaphorePermit<'a>,
}

impl Default for Places {
    fn default() -> Self {
        Self::among(&OF_NODE)
    }
}

impl Places {
    fn among(all: &'static Semaphore) -> Self {
        Self {
            own: Arc::new(Semaphore::new(OF_POD)),
            all,
        }
    }

    /// Waits for room, in turn, for so long. One that waits for its own pod's is not in the way of the others.
    pub(crate) async fn take(&self, patience: Duration) -> Option<Place<'_>> {
        let both = async {
            let own = self.own.acquire().await.ok()?;
            let all = self.all.acquire().await.ok()?;
            Some(Place { _own: own, _all: all })
        };
        tokio::time::timeout(patience, both).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_waits_for_answers_leaves_room_for_others() {
        static ALL: Semaphore = Semaphore::const_new(OF_POD + 1);
        let (greedy, other) = (Places::among(&ALL), Places::among(&ALL));
        let mut held = Vec::new();
        for _ in 0..OF_POD {
            held.push(greedy.take(PATIENCE).await.unwrap());
        }
        // More of the pod's wait and are given up.
        assert!(greedy.take(PATIENCE).await.is_none());
        let place = other.take(PATIENCE).await.unwrap();
        assert!(other.take(PATIENCE).await.is_none(), "the node has no more");
        drop(place);
        assert!(other.take(PATIENCE).await.is_some());
        // Who waits is next.
        let (next, ()) = tokio::join!(greedy.take(PATIENCE), async { held.clear() });
        assert!(next.is_some());
        drop(next);
        assert_eq!(
            (ALL.available_permits(), greedy.own.available_permits()),
            (OF_POD + 1, OF_POD)
        );
    }
}
