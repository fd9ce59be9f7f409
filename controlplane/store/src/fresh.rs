//! Reads that show what other processes have been told is written.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::BackendError;
use crate::backend::Peers;

/// Why reads may not show the newest.
#[derive(Debug, thiserror::Error)]
pub enum FreshError {
    /// The changes did not come in time.
    #[error("the newest changes have not come in time")]
    Late,
    /// The database could not be asked.
    #[error("ask for the newest revision")]
    Failed(#[source] BackendError),
}

/// Asks for the newest revision, once for all who come while a question is under way.
pub(crate) struct Fresh {
    peers: Arc<dyn Peers>,
    /// When the last question that was answered was asked, and its answer.
    last: Mutex<Option<(Instant, u64)>>,
}

impl Fresh {
    pub(crate) fn new(peers: Arc<dyn Peers>) -> Self {
        Self {
            peers,
            last: Mutex::new(None),
        }
    }

    /// A revision that no write is above which was acknowledged before the call.
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
