//! Previous sandboxes of the pod: they were lost, or the agent ended while it created or removed
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::observed::Sandbox;
use agent_plan::pod::restart;
use futures::FutureExt as _;
use futures::future::OptionFuture;
use tracing::warn;

use super::removal::remove_lost;
use crate::pod::worker::{Done, Worker};

impl Worker {
    /// Adopts sandboxes of an earlier agent other than the pod's current one. None of them is used
    /// again: their removal may have begun.
    pub(crate) fn succeed(&mut self, earlier: BTreeSet<String>) {
        if !matches!(self.view.sandbox, Sandbox::Ready { .. }) {
            let attempts = earlier.iter().filter_map(|id| id.rsplit_once('-')?.1.parse().ok());
            let next = attempts.max().map_or(0, |last: u32| last.saturating_add(1));
            self.sandbox_attempt = self.sandbox_attempt.max(next);
        }
        for id in earlier {
            self.clear_away(id);
        }
    }

    /// Removes a sandbox that no longer belongs to the pod, and retries without limit: no other
    /// task removes it.
    pub(in crate::pod::worker) fn clear_away(&mut self, id: String) {
        if !self.earlier.insert(id.clone()) {
            return;
        }
        let (context, creation_lock) = (Arc::clone(&self.context), Arc::clone(&self.creation_lock));
        let mut heard = Some(self.publisher.heard());
        self.tasks.spawn(async move {
            // A container creation in this sandbox must complete first, to report its result.
            drop(creation_lock.write().await);
            let mut times = 0_u32;
            while let Err(failures) = remove_lost(&context, &id, OptionFuture::from(heard.take()).map(drop)).await {
                warn!(
                    sandbox = id,
                    failures, times, "a lost sandbox could not be removed; it will be tried again"
                );
                let delay = restart::sandbox_delay_milliseconds(times);
                tokio::time::sleep(Duration::from_millis(u64::try_from(delay).unwrap_or(0))).await;
                times = times.saturating_add(1);
            }
            Done::Forgotten(id)
        });
    }
}
