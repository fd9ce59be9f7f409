//! State derived from objects of the store, recomputed on access after one of them changed.

use std::sync::{Arc, PoisonError, RwLock};

use store::{Prefix, Store};
use tokio::sync::watch;

/// State that is derived from the store.
pub(crate) trait Follow: Sized {
    /// Prefixes of the objects that it is made from.
    fn prefixes() -> Vec<Prefix>;

    /// Reads the state from the store, reusing unchanged parts of the previous one.
    fn read(store: &Store, before: Option<&Self>) -> Self;
}

/// The state of a type, up to date with the store: a request that comes after a write was acknowledged sees it.
pub(crate) struct Follower<T> {
    store: Store,
    changed: Vec<watch::Receiver<u64>>,
    /// State with the revisions of the last changes before it was read.
    current: RwLock<(Vec<u64>, Arc<T>)>,
}

impl<T: Follow> Follower<T> {
    pub(crate) fn new(store: Store) -> Self {
        let changed: Vec<_> = T::prefixes().iter().map(|prefix| store.last_change(prefix)).collect();
        let revisions = changed.iter().map(|changed| *changed.borrow()).collect();
        let state = Arc::new(T::read(&store, None));
        Self {
            store,
            changed,
            current: RwLock::new((revisions, state)),
        }
    }

    fn is_current(&self, revisions: &[u64]) -> bool {
        self.changed
            .iter()
            .map(|changed| *changed.borrow())
            .eq(revisions.iter().copied())
    }

    /// Current state. Costs an uncontended lock and a few loads while nothing changes.
    pub(crate) fn current(&self) -> Arc<T> {
        let known = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_current(&known.0) {
            return Arc::clone(&known.1);
        }
        drop(known);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_current(&current.0) {
            // Revisions are read before the store: changes in between are read again.
            let revisions = self.changed.iter().map(|changed| *changed.borrow()).collect();
            *current = (revisions, Arc::new(T::read(&self.store, Some(&current.1))));
        }
        Arc::clone(&current.1)
    }
}
