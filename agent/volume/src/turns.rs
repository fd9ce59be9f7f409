//! Order of the updates of a pod's volumes. A refresh and a new setup may run concurrently, each
//! with objects read from the API before: only one writes at a time, older objects never replace
//! newer ones, and nothing is created after the volumes were removed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Turns of one pod.
#[derive(Debug, Default)]
pub struct Turns {
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Turn of the current volumes.
    pub(crate) done: u64,
    /// True once the volumes are removed.
    pub(crate) removed: bool,
}

/// Position in the order of updates. It must be taken before objects are read.
#[derive(Debug)]
pub struct Turn {
    number: u64,
    turns: Arc<Turns>,
}

impl Turns {
    /// Takes the next turn.
    pub fn take(self: &Arc<Self>) -> Turn {
        Turn {
            number: self.next.fetch_add(1, Ordering::Relaxed).saturating_add(1),
            turns: Arc::clone(self),
        }
    }

    /// True once the volumes are removed.
    pub fn are_removed(&self) -> bool {
        self.hold().removed
    }

    /// Locks the state, waiting for a running update.
    pub(crate) fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, unless an update is running.
    pub(crate) fn try_hold(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Turn {
    /// Does the work of this turn, unless a later one was done already or the volumes were removed.
    pub(crate) fn use_for<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.turns.hold();
        if state.removed || state.done > self.number {
            return Ok(());
        }
        work()?;
        state.done = self.number;
        Ok(())
    }
}
