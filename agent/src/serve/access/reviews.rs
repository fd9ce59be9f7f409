//! Answers of the API server about users, cached.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Timeout of requests to the API server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of cached answers of each kind.
const KEPT: usize = 512;
/// Maximum number of concurrent requests.
const TURNS: usize = 8;

/// User who is authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::serve) struct Who {
    pub(in crate::serve) name: String,
    pub(in crate::serve) uid: Option<String>,
    pub(in crate::serve) groups: Vec<String>,
    pub(in crate::serve) extra: BTreeMap<String, Vec<String>>,
}

/// Resource attributes of a request to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked {
    pub(super) verb: &'static str,
    pub(super) subresource: &'static str,
}

/// Cached answers of the API server.
pub(crate) struct Access {
    pub(super) tokens: Kept<[u8; 32], Option<Who>>,
    pub(super) permissions: Kept<(Who, Asked), bool>,
    /// Limits the load that unauthenticated clients can cause on the API server.
    turns: Semaphore,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            tokens: Kept::default(),
            permissions: Kept::default(),
            turns: Semaphore::new(TURNS),
        }
    }
}

impl Access {
    /// Sends a review to the API server, with limited concurrency and a timeout.
    pub(super) async fn ask<T>(&self, question: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
        let asked = timeout(TIMEOUT, async {
            let _turn = self.turns.acquire().await;
            question.await
        });
        asked
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| image::chain(&error))
    }
}

/// Cached answers, each with its expiry.
pub(super) struct Kept<K, V>(Mutex<BTreeMap<K, (V, Instant)>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, V: Clone> Kept<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = known.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    pub(super) fn put(&self, key: K, value: V, time: Duration) {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= KEPT {
            known.pop_first();
        }
        known.insert(key, (value, now + time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_mins(5);

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_their_time_and_not_without_bound() {
        let kept = Kept::default();
        for number in 0..2 * KEPT {
            kept.put(number, (), TIME);
        }
        assert_eq!(kept.0.lock().unwrap().len(), KEPT);
        assert_eq!(kept.get(&(2 * KEPT - 1)), Some(()));
        tokio::time::advance(TIME).await;
        assert_eq!(kept.get(&(2 * KEPT - 1)), None);
    }
}
