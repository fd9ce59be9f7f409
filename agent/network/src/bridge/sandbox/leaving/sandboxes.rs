//! The sandboxes whose links are not deleted yet.

use std::collections::BTreeSet;

/// Sandboxes by the state of the deletion of their link.
#[derive(Default)]
pub(in crate::bridge) struct Leaving {
    /// Sandboxes whose links are being deleted.
    going: BTreeSet<String>,
    /// Sandboxes whose links could not be deleted; they keep their addresses.
    stuck: BTreeSet<String>,
}

impl Leaving {
    /// Records that a sandbox's link is being deleted. Returns false if it was recorded already.
    pub(in crate::bridge) fn begin(&mut self, sandbox: &str) -> bool {
        self.stuck.remove(sandbox);
        self.going.insert(sandbox.to_owned())
    }

    /// Records that the deletion is complete or could not be started.
    pub(in crate::bridge) fn stay(&mut self, sandbox: &str) {
        self.going.remove(sandbox);
        self.stuck.remove(sandbox);
    }

    /// Records that the deletion has failed repeatedly.
    pub(in crate::bridge) fn give_up(&mut self, sandbox: &str) {
        if self.going.remove(sandbox) {
            self.stuck.insert(sandbox.to_owned());
        }
    }

    /// Marks all failed deletions to be tried again.
    pub(in crate::bridge) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(in crate::bridge) fn has(&self, sandbox: &str) -> bool {
        self.going.contains(sandbox) || self.stuck.contains(sandbox)
    }

    /// True if the link of a matching sandbox is being deleted.
    pub(in crate::bridge) fn is_going(&self, which: impl Fn(&str) -> bool) -> bool {
        self.going.iter().any(|sandbox| which(sandbox))
    }
}
