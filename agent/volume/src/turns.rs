//! Who makes a pod's volumes when. A refresh and a new preparation may run side by side, each with what it has read of the
//! API before: only one writes at a time, what was read earlier never replaces what was read later, and nothing is made any
//! more once the volumes are removed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The turns of one pod.
#[derive(Debug, Default)]
pub struct Turns {
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The turn whose volumes stand.
    pub(crate) done: u64,
    /// No more.
    pub(crate) removed: bool,
}

/// One turn. It is to be taken before anything is read.
#[derive(Debug)]
pub struct Turn {
    number: u64,
    turns: Arc<Turns>,
}

impl Turns {
    /// The next turn.
    pub fn take(self: &Arc<Self>) -> Turn {
        Turn {
            number: self.next.fetch_add(1, Ordering::Relaxed).saturating_add(1),
            turns: Arc::clone(self),
        }
    }

    /// Waits until nobody writes.
    pub(crate) fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody writes.
    pub(crate) fn try_hold(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Turn {
    /// Does the work of this turn, unless it came too late.
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
