//! Sandboxes whose namespaces and ports are free, and whose links are still to be taken away.

use std::collections::BTreeSet;

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
