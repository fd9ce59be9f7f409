//! Sandboxes whose namespaces and ports are free, and whose links are still to be taken away.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::records::Records;
use super::{Inner, finish, names, namespace, note};
use crate::Error;

/// Between two tries to take a link away: at first, and at most.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_mins(1);

/// Who must know that nobody leaves waits so long.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Leaving {
    /// Somebody is about to do it.
    going: BTreeSet<String>,
    /// Nobody could: they keep their addresses.
    stuck: BTreeSet<String>,
}

impl Leaving {
    /// Notes that somebody is about to take a sandbox's link away. Answers whether nobody was.
    pub(super) fn begin(&mut self, sandbox: &str) -> bool {
        self.stuck.remove(sandbox);
        self.going.insert(sandbox.to_owned())
    }

    /// Notes that nobody is any more, because it is done or could not be begun.
    pub(super) fn stay(&mut self, sandbox: &str) {
        self.going.remove(sandbox);
        self.stuck.remove(sandbox);
    }

    /// Notes that somebody tried in vain, for long.
    pub(super) fn give_up(&mut self, sandbox: &str) {
        if self.going.remove(sandbox) {
            self.stuck.insert(sandbox.to_owned());
        }
    }

    /// Notes that all who leave are to be taken away once more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn has(&self, sandbox: &str) -> bool {
        self.going.contains(sandbox) || self.stuck.contains(sandbox)
    }

    /// Whether somebody is about to take the link of one of these sandboxes away.
    pub(super) fn is_going(&self, which: impl Fn(&str) -> bool) -> bool {
        self.going.iter().any(|sandbox| which(sandbox))
    }
}

impl Inner {
    pub(super) fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let link = self.let_go(sandbox)?;
        let Some(link) = link else { return Ok(()) };
        let taken = self.take_away(sandbox, &link);
        if taken.is_err() {
            self.stay(sandbox);
        }
        taken
    }

    /// Nobody is about to take the sandbox's link away any more.
    fn stay(&self, sandbox: &str) {
        self.records().leaving.stay(sandbox);
        self.settled.notify_all();
    }

    /// Lets go of a sandbox's namespace and frees its ports. Answers which link is to be taken away then: none where somebody
    /// does that already.
    pub(super) fn let_go(&self, sandbox: &str) -> Result<Option<String>, Error> {
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

    /// Takes a sandbox's link away, and frees its address when that is gone: the kernel lets some time pass first, so that
    /// nobody who only waits for the sandbox's end waits for this.
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

    /// The same, until it is done. When it cannot be, the sandbox keeps its address until the next agent looks at what there is.
    pub(super) fn take_away_at_last(&self, sandbox: &str, link: &str, mut place: Option<OwnedSemaphorePermit>) {
        let mut pause = AGAIN;
        while let Err(error) = self.take_away(sandbox, link) {
            tracing::warn!(sandbox, link, %error, "a link could not be taken away");
            // Others go on meanwhile.
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

    /// The records when nobody is about to take the link of one of these sandboxes away any more, or has tried for long.
    pub(super) fn settled(&self, which: impl Fn(&str) -> bool) -> MutexGuard<'_, Records> {
        let leaving = |records: &mut Records| records.leaving.is_going(&which);
        let waited = self.settled.wait_timeout_while(self.records(), SETTLED, leaving);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
