//! Linearizable reads: they show every write that another process has acknowledged.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::BackendError;
use crate::backend::Peers;

/// Reason why reads may be stale.
#[derive(Debug, thiserror::Error)]
pub enum FreshError {
    /// The changes did not come in time.
    #[error("the newest changes have not come in time")]
    Late,
    /// The database did not answer with its newest revision.
    #[error("ask for the newest revision")]
    Failed(#[source] BackendError),
}

/// Fetches the newest revision, once for all callers that wait meanwhile.
pub(crate) struct Fresh {
    peers: Arc<dyn Peers>,
    /// Start of the last successful fetch, and its answer.
    last: Mutex<Option<(Instant, u64)>>,
}

impl Fresh {
    pub(crate) fn new(peers: Arc<dyn Peers>) -> Self {
        Self {
            peers,
            last: Mutex::new(None),
        }
    }

    /// Returns a revision that includes every write acknowledged before the call.
    pub(crate) async fn newest(&self) -> Result<u64, BackendError> {
        let came = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((_, newest)) = last.filter(|(asked, _)| *asked >= came) {
            return Ok(newest);
        }
        let asked = Instant::now();
        let newest = self.peers.newest().await?;
        *last = Some((asked, newest));
        Ok(newest)
    }
}
