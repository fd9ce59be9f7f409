//! Connections of clients that are not authenticated yet. At the limit, the oldest of them is
//! closed first, so that idle clients lock out no others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// True once the client of a connection is authenticated; authentication sets it in each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Arc<AtomicBool>);

impl Known {
    /// Marks the client as authenticated.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection's side of the list. When it is dropped the connection is off the list.
#[derive(Debug)]
pub(super) struct Guest {
    known: Known,
    shed: CancellationToken,
}

impl Guest {
    pub(super) fn known(&self) -> Known {
        self.known.clone()
    }

    /// Token that is canceled when the connection must be closed.
    pub(super) fn shed(&self) -> CancellationToken {
        self.shed.clone()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.known.set();
    }
}

/// The connections, oldest first. Those that are known are still in it, and left out when their turn comes.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    guests: VecDeque<(Known, CancellationToken)>,
    /// The length at which the known ones are taken out.
    full: usize,
}

impl Strangers {
    pub(super) fn welcome(&mut self) -> Guest {
        if self.guests.len() >= self.full {
            self.guests.retain(|(known, _)| !known.get());
            self.full = (self.guests.len() * 2).max(64);
        }
        let (known, shed) = (Known::default(), CancellationToken::new());
        self.guests.push_back((known.clone(), shed.clone()));
        Guest { known, shed }
    }

    /// Ends the oldest connection of a stranger, if there is one.
    pub(super) fn shed_oldest(&mut self) {
        while let Some((known, shed)) = self.guests.pop_front() {
            if !known.get() {
                return shed.cancel();
            }
        }
    }
}
