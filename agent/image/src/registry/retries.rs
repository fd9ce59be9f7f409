//! Retries of registry requests.

use std::time::Duration;

use crate::config::Limits;
use crate::registry::failure::RegistryError;

/// Attempts of one request:
/// `loop { match attempt { Err(error) => retries.after(error).await?, … } }`.
pub(crate) struct Retries {
    left: u32,
    wait: Duration,
}

impl Retries {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            left: limits.attempts.saturating_sub(1),
            wait: Duration::from_millis(250),
        }
    }

    /// Waits before the next attempt, with a growing delay; returns the error if there is none.
    pub(crate) async fn after(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        const LONGEST: Duration = Duration::from_secs(30);
        let Some(asked) = error.retry().filter(|_| self.left > 0) else {
            return Err(error);
        };
        tracing::debug!(error = %crate::chain(&error), wait = ?self.wait, "asking the registry again");
        tokio::time::sleep(self.wait.max(asked).min(LONGEST)).await;
        self.left -= 1;
        self.wait = (self.wait * 2).min(LONGEST);
        Ok(())
    }
}
