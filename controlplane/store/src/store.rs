//! The store's handle for the server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::backend::{Backend, Memory, Sqlite};
use crate::object::entry::{Entry, List};
use crate::object::key::{Key, Prefix};
use crate::options::{OpenError, Options};
use crate::read::cache::{Cache, RingLimits};
use crate::read::fresh::{Fresh, FreshError};
use crate::read::watch::{Watch, WatchError, event};
use crate::shared::Shared;
use crate::write::committer::Committer;
use crate::write::pool::Pool;
use crate::write::retention::Retention;
use crate::write::writer::{Request, Writer};
use crate::write::{Class, CommitError, Guard, Write};
use crate::{BackendError, EventKind};

/// Interval between two rounds of retention.
const MAINTENANCE: Duration = Duration::from_secs(10);
/// Changes read from the ledger at a time.
const CHUNK: usize = 512;

/// Revision of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListAt {
    /// The newest revision.
    Latest,
    /// Exactly this revision, if it is not compacted.
    Exactly(u64),
}

/// Reason why a list failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ListError {
    /// The revision is compacted.
    #[error("revision {revision} is no longer available")]
    Expired {
        /// The requested revision.
        revision: u64,
    },
    /// The revision is in the future.
    #[error("revision {revision} has not been reached; the newest is {newest}")]
    Future {
        /// The requested revision.
        revision: u64,
        /// The newest revision.
        newest: u64,
    },
    /// The ledger could not be read.
    #[error("read the ledger")]
    Failed(#[source] Arc<BackendError>),
}

/// The store. Cheap to clone; all clones share one store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    committer: Committer,
    /// Source of the newest revision in a shared ledger.
    fresh: Option<Arc<Fresh>>,
    opened: tokio::time::Instant,
}

impl Store {
    /// Opens the database at `path`, or creates a new one; its directory must exist.
    ///
    /// Refuses a database that another process has open, that is damaged, or that belongs to
    /// another program.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        Self::with_backend(Box::new(Sqlite::open(path, &options)?), options)
    }

    /// A store in memory that commits on the caller's thread.
    pub fn in_memory(options: Options) -> Self {
        let parts = parts(Box::new(Memory::default()), options);
        // Memory cannot fail to load.
        let (shared, writer) = match parts {
            Ok(parts) => parts,
            Err(failure) => unreachable!("{failure}"),
        };
        Self {
            shared,
            committer: Committer::inline(writer),
            fresh: None,
            opened: tokio::time::Instant::now(),
        }
    }

    /// A store on any backend, with its own writer thread.
    pub fn with_backend(backend: Box<dyn Backend>, options: Options) -> Result<Self, OpenError> {
        let (shared, writer) = parts(backend, options)?;
        let fresh = writer.backend.peers().map(|peers| Arc::new(Fresh::new(peers)));
        Ok(Self {
            shared,
            committer: Committer::start(writer)?,
            fresh,
            opened: tokio::time::Instant::now(),
        })
    }

    /// The newest version of an object.
    pub fn get(&self, key: &Key) -> Option<Entry> {
        self.shared.cache().get(key).cloned()
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.shared.cache().revision
    }

    /// Waits until a revision is reached, for at most `limit`; returns the newest revision then.
    pub async fn reach(&self, revision: u64, limit: Duration) -> u64 {
        let mut newest = self.shared.newest.subscribe();
        let reached = newest.wait_for(|newest| *newest >= revision);
        // The newest revision shows whether it was reached or the wait timed out.
        drop(tokio::time::timeout(limit, reached).await);
        self.revision()
    }

    /// Waits, for at most `limit`, until reads show every write that any process acknowledged
    /// before the call. Returns at once if this process is the only writer.
    pub async fn refresh(&self, limit: Duration) -> Result<(), FreshError> {
        let Some(fresh) = &self.fresh else { return Ok(()) };
        let deadline = tokio::time::Instant::now() + limit;
        let newest = tokio::time::timeout_at(deadline, fresh.newest())
            .await
            .map_err(|_elapsed| FreshError::Late)?
            .map_err(FreshError::Failed)?;
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        if self.revision() < newest && self.reach(newest, left).await < newest {
            return Err(FreshError::Late);
        }
        Ok(())
    }

    /// True if other processes write to the same ledger.
    pub fn is_shared(&self) -> bool {
        self.fresh.is_some()
    }

    /// The compaction floor: versions superseded up to this revision are gone.
    pub fn floor(&self) -> u64 {
        self.shared.cache().floor
    }

    /// Newest versions under a prefix that `keep` accepts, in the order of their keys. `keep` must
    /// be fast: it runs under the cache's lock.
    pub fn select(&self, prefix: &Prefix, keep: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let cache = self.shared.cache();
        cache.range(prefix, None).filter(|entry| keep(entry)).cloned().collect()
    }

    /// The revision of the last change of a prefix's resource. It is updated before a write is
    /// acknowledged, and after readers can see the write.
    pub fn last_change(&self, prefix: &Prefix) -> tokio::sync::watch::Receiver<u64> {
        self.shared.cache_mut().subscribe(prefix)
    }

    /// Lists objects under a prefix in the order of their keys, after a key, at most `limit` of
    /// them.
    pub async fn list(
        &self,
        prefix: &Prefix,
        at: ListAt,
        after: Option<&Key>,
        limit: Option<usize>,
    ) -> Result<List, ListError> {
        match at {
            ListAt::Exactly(revision) => self.list_exactly(prefix, revision, after, limit).await,
            ListAt::Latest => Ok(self.list_latest(prefix, after, limit)),
        }
    }

    /// Lists all objects under a prefix at the newest revision.
    pub fn present(&self, prefix: &Prefix) -> Vec<Entry> {
        self.list_latest(prefix, None, None).entries
    }

    /// True if `wanted` accepts the newest version of an object under a prefix. It must be fast: it
    /// runs under the cache's lock.
    pub fn any(&self, prefix: &Prefix, wanted: impl Fn(&Entry) -> bool) -> bool {
        self.shared.cache().range(prefix, None).any(wanted)
    }

    /// True if there is any object under a prefix.
    pub fn has_any(&self, prefix: &Prefix) -> bool {
        self.any(prefix, |_| true)
    }

    fn list_latest(&self, prefix: &Prefix, after: Option<&Key>, limit: Option<usize>) -> List {
        let cache = self.shared.cache();
        let mut range = cache.range(prefix, after);
        let entries = range.by_ref().take(limit.unwrap_or(usize::MAX)).cloned().collect();
        let remaining = range.count();
        List {
            entries,
            revision: cache.revision,
            remaining,
        }
    }

    /// Lists a snapshot of the past: the current state with later changes undone.
    async fn list_exactly(
        &self,
        prefix: &Prefix,
        revision: u64,
        after: Option<&Key>,
        limit: Option<usize>,
    ) -> Result<List, ListError> {
        let (mut entries, recent) = {
            let cache = self.shared.cache();
            let newest = cache.revision;
            if revision > newest {
                return Err(ListError::Future { revision, newest });
            }
            // Also for a resource that has not changed since: clients learn that a continue token
            // is too old, as upstream's do. Revisions below the floor only because of many writes
            // elsewhere are not too old.
            if revision < cache.aged {
                return Err(ListError::Expired { revision });
            }
            let recent = cache.recent(prefix, revision);
            let behind_ring = recent.gap_until > 0;
            if behind_ring && !(cache.is_complete(prefix, revision) && self.shared.class_of(prefix) == Class::Kept) {
                return Err(ListError::Expired { revision });
            }
            let entries: BTreeMap<Key, Option<Entry>> = cache
                .range(prefix, after)
                .map(|entry| (entry.key.clone(), Some(entry.clone())))
                .collect();
            (entries, recent)
        };
        let in_page = |key: &Key| after.is_none_or(|after| key > after);
        for event in recent.events.iter().filter(|event| in_page(&event.entry.key)) {
            entries.insert(event.entry.key.clone(), event.prev().cloned());
        }
        if recent.gap_until > 0 {
            let past = self.past(prefix, revision, recent.gap_until).await?;
            entries.extend(past.into_iter().filter(|(key, _)| in_page(key)));
        }
        let mut entries = entries.into_values().flatten();
        let page = entries.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        Ok(List {
            entries: page,
            revision,
            remaining: entries.count(),
        })
    }

    /// For every object changed in `(revision, until]`: its version at `revision`.
    async fn past(
        &self,
        prefix: &Prefix,
        revision: u64,
        until: u64,
    ) -> Result<BTreeMap<Key, Option<Entry>>, ListError> {
        let mut past = BTreeMap::new();
        let mut from = revision;
        while from < until {
            let changes = self
                .shared
                .changes(prefix, from, until, CHUNK)
                .await
                .map_err(ListError::Failed)?;
            if !self.shared.cache().is_complete(prefix, revision) {
                return Err(ListError::Expired { revision });
            }
            from = if changes.len() < CHUNK {
                until
            } else {
                changes.last().map_or(until, |c| c.record.revision)
            };
            for change in changes {
                let event = event(&self.shared, change);
                past.entry(event.entry.key.clone()).or_insert_with(|| match event.kind {
                    EventKind::Put { prev } | EventKind::Delete { prev } => prev,
                });
            }
        }
        Ok(past)
    }

    /// Stores one change, in one batch with all others that wait. Returns the version that is now
    /// stored (for a delete: the final one) when it is on disk; its revision is `entry.revision`.
    /// Dropping the future does not cancel the write.
    pub async fn commit(&self, write: Write) -> Result<Entry, CommitError> {
        self.commit_with(write, Vec::new()).await
    }

    /// Like [`Store::commit`], together with other changes: all of them or none. If one of those is
    /// refused, the error is [`CommitError::Accompanying`].
    pub async fn commit_with(&self, write: Write, also: Vec<Write>) -> Result<Entry, CommitError> {
        self.commit_if(write, also, Vec::new()).await
    }

    /// Like [`Store::commit_with`], if the guards hold at that very revision; otherwise the error
    /// is [`CommitError::Guarded`] or [`CommitError::Changed`].
    pub async fn commit_if(&self, write: Write, also: Vec<Write>, guards: Vec<Guard>) -> Result<Entry, CommitError> {
        let request = Request { write, also, guards };
        self.committer.commit(&self.shared, request).await
    }

    /// Changes under a prefix after revision `from`.
    pub fn watch(&self, prefix: &Prefix, from: u64) -> Result<Watch, WatchError> {
        self.watch_field(prefix, None, from)
    }

    /// The same, of objects that have a value in a field, or had it before; others may be among
    /// them. Changes of others do not wake it.
    pub fn watch_field(&self, prefix: &Prefix, of: Option<(&str, &str)>, from: u64) -> Result<Watch, WatchError> {
        Watch::new(Arc::clone(&self.shared), prefix, of, from)
    }

    /// True if the last write reached the disk, not counting writes into the reserve for deletions.
    pub fn is_writable(&self) -> bool {
        self.shared.writable.load(Ordering::Relaxed)
    }

    /// Runs maintenance for as long as it is polled: run it beside the server, and drop it to stop.
    /// Returns when the store is closed or its writer has died, since no write can succeed any
    /// more.
    pub async fn run(&self) {
        loop {
            tokio::select! {
                () = self.committer.ended() => return,
                () = tokio::time::sleep(MAINTENANCE) => self.maintain().await,
            }
        }
    }

    /// Runs one round of maintenance: raises the compaction floor, sweeps below it, and removes
    /// expired objects.
    pub async fn maintain(&self) {
        self.committer.maintain(self.opened.elapsed()).await;
    }

    /// Ends all watches, finishes the queued writes, and closes the files. Later writes fail with
    /// `Closed`; `get` and lists of the newest revision still show the last state, so that clients
    /// do not see an empty cluster.
    pub async fn close(&self) -> Result<(), Arc<BackendError>> {
        self.committer.close(&self.shared).await
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Store")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

fn parts(mut backend: Box<dyn Backend>, options: Options) -> Result<(Arc<Shared>, Writer), OpenError> {
    let loaded = backend.load().map_err(OpenError::Load)?;
    let history = backend.history().map_err(OpenError::Load)?;
    backend.reserve();
    let limits = RingLimits {
        events: options.ring_events,
        bytes: options.ring_bytes,
    };
    let mut cache = Cache::new(loaded.revision, loaded.floor, limits);
    let mut pool = Pool::default();
    for record in loaded.heads {
        cache.load(pool.entry(&options, record));
    }
    let retention = Retention::new(options.retention, options.retention_bytes, loaded.revision);
    let shared = Arc::new(Shared::new(options, cache, history));
    Ok((
        Arc::clone(&shared),
        Writer {
            shares: backend.peers().is_some(),
            shared,
            backend,
            retention,
            pool,
            swift: false,
            full: false,
        },
    ))
}
