//! State that handles, watchers and the writer share.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::backend::{Change, History};
use crate::read::cache::Cache;
use crate::{BackendError, Class, Options, Prefix};

pub(crate) struct Shared {
    pub(crate) options: Options,
    /// The newest published revision, for tasks that wait for one.
    pub(crate) newest: watch::Sender<u64>,
    /// True if the last write reached the disk.
    pub(crate) writable: AtomicBool,
    cache: RwLock<Cache>,
    pub(crate) history: Arc<dyn History>,
}

impl Shared {
    pub(crate) fn new(options: Options, cache: Cache, history: Arc<dyn History>) -> Self {
        Self {
            newest: watch::Sender::new(cache.revision),
            writable: AtomicBool::new(true),
            options,
            cache: RwLock::new(cache),
            history,
        }
    }

    pub(crate) fn cache(&self) -> RwLockReadGuard<'_, Cache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cache_mut(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn class_of(&self, prefix: &Prefix) -> Class {
        (self.options.class)(prefix.resource_name())
    }

    /// Reads the ledger without blocking the asynchronous threads.
    pub(crate) async fn changes(
        &self,
        prefix: &Prefix,
        after: u64,
        until: u64,
        limit: usize,
    ) -> Result<Vec<Change>, Arc<BackendError>> {
        if !self.history.blocks() {
            return self.history.changes(prefix, after, until, limit).map_err(Arc::new);
        }
        let changes = self.read_behind(prefix, after, until, limit).await?;
        // Another process may have raised the floor and removed the requested changes.
        let floor = self.history.floor();
        if floor > self.cache().floor {
            self.cache_mut().floor = floor;
        }
        Ok(changes)
    }

    async fn read_behind(
        &self,
        prefix: &Prefix,
        after: u64,
        until: u64,
        limit: usize,
    ) -> Result<Vec<Change>, Arc<BackendError>> {
        let (history, prefix) = (Arc::clone(&self.history), prefix.clone());
        let read = tokio::task::spawn_blocking(move || history.changes(&prefix, after, until, limit)).await;
        match read {
            Ok(changes) => changes.map_err(Arc::new),
            Err(join) => Err(Arc::new(BackendError::Io(join.into()))),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}
