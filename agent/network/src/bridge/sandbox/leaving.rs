//! Sandboxes whose namespaces and ports are freed, but whose links are not deleted yet.

pub(super) mod sandboxes;

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::namespace;
use super::records::Records;
use crate::Error;
use crate::bridge::{Inner, finish, names, note};

/// Delay between attempts to delete a link: initial and maximum.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_mins(1);

/// Longest time to wait for links that are being deleted.
const SETTLED: Duration = Duration::from_secs(10);

impl Inner {
    pub(in crate::bridge) fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let link = self.let_go(sandbox)?;
        let Some(link) = link else { return Ok(()) };
        let taken = self.take_away(sandbox, &link);
        if taken.is_err() {
            self.stay(sandbox);
        }
        taken
    }

    /// Records that the deletion of the sandbox's link has ended.
    fn stay(&self, sandbox: &str) {
        self.records().leaving.stay(sandbox);
        self.settled.notify_all();
    }

    /// Releases a sandbox's namespace and frees its ports. Returns the link to delete; `None` if it
    /// is being deleted already.
    pub(in crate::bridge) fn let_go(&self, sandbox: &str) -> Result<Option<String>, Error> {
        names::sandbox(sandbox)?;
        let (link, led) = {
            let mut records = self.records();
            if !records.leaving.begin(sandbox) {
                return Ok(None);
            }
            (records.link(sandbox), records.ports(sandbox))
        };
        let mut failures = Vec::new();
        let path = namespace::path(&self.config.state_dir, sandbox);
        note(&mut failures, namespace::release(&path));
        failpoint::reach("released");
        if !led.is_empty() {
            note(&mut failures, self.lead_ports(&led));
        }
        if !failures.is_empty() {
            self.stay(sandbox);
        }
        finish(failures).map(|()| Some(link))
    }

    /// Deletes a sandbox's link and then frees its address. The kernel takes some time for it, for
    /// which the removal of the sandbox does not wait.
    fn take_away(&self, sandbox: &str, link: &str) -> Result<(), Error> {
        let gone = self.unlink(link);
        failpoint::reach("unconnected");
        gone?;
        let known = self.records().known(sandbox);
        if let Some(known) = known {
            self.dismiss(link, &known);
        }
        self.records().release(sandbox)?;
        self.settled.notify_all();
        Ok(())
    }

    /// Retries until the link is deleted. If that fails, the sandbox keeps its address until the
    /// next start of the agent.
    pub(in crate::bridge) fn take_away_at_last(
        &self,
        sandbox: &str,
        link: &str,
        mut place: Option<OwnedSemaphorePermit>,
    ) {
        let mut pause = AGAIN;
        while let Err(error) = self.take_away(sandbox, link) {
            tracing::warn!(sandbox, link, %error, "a link could not be taken away");
            // Releases the permit during the delay.
            place.take();
            if pause > AGAIN_AT_MOST {
                self.records().leaving.give_up(sandbox);
                self.settled.notify_all();
                break;
            }
            std::thread::park_timeout(pause);
            pause *= 2;
        }
    }

    /// Locks the records once no link of a matching sandbox is being deleted, or the deletion has
    /// failed for long.
    pub(in crate::bridge) fn settled(&self, which: impl Fn(&str) -> bool) -> MutexGuard<'_, Records> {
        let leaving = |records: &mut Records| records.leaving.is_going(&which);
        let waited = self.settled.wait_timeout_while(self.records(), SETTLED, leaving);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
