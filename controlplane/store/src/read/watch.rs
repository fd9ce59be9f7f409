//! Watchers: they read from the shared ring, and from the ledger if they are further behind than
//! the ring goes.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use crate::object::entry::{Entry, Event, EventKind};
use crate::object::key::Prefix;
use crate::read::news::News;
use crate::shared::Shared;
use crate::{BackendError, Class, Operation};

/// Most changes that a watcher buffers.
const BUFFER: usize = 128;
/// Most changes that are read from the ledger at a time.
const LEDGER_BUFFER: usize = 32;
/// Most bytes that are buffered, not counting the first change: a slow reader keeps them in memory.
const BUFFER_BYTES: usize = 32 << 10;

/// The changes of one resource, or of one namespace of it, from a revision on: each once and in
/// order. A watch of one value of a field may leave out changes of objects that neither have it nor
/// had it before.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    prefix: Prefix,
    receiver: watch::Receiver<News>,
    buffer: VecDeque<Arc<Event>>,
    /// `next` has returned everything up to here.
    delivered: u64,
    /// Highest revision that `progress` has returned.
    promised: u64,
    /// Everything up to here was returned or is in the buffer.
    scanned: u64,
}

/// Reason why a watch ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WatchError {
    /// Changes that the watcher has not seen are compacted. The client must list again.
    #[error("the changes since revision {after} are no longer available")]
    Expired {
        /// The last revision that the watcher has seen.
        after: u64,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The ledger could not be read.
    #[error("read the ledger")]
    Failed(#[source] Arc<BackendError>),
}

enum Filled {
    Yes,
    Idle,
    Gap { until: u64 },
}

impl Watch {
    pub(crate) fn new(
        shared: Arc<Shared>,
        prefix: &Prefix,
        of: Option<(&str, &str)>,
        from: u64,
    ) -> Result<Self, WatchError> {
        let receiver = {
            let mut cache = shared.cache_mut();
            if cache.closed {
                return Err(WatchError::Closed);
            }
            let behind_ring = cache.recent(prefix, from).gap_until > 0;
            if behind_ring && !(cache.is_complete(prefix, from) && shared.class_of(prefix) == Class::Kept) {
                return Err(WatchError::Expired { after: from });
            }
            cache.subscribe_to_news(prefix, of)
        };
        Ok(Self {
            shared,
            prefix: prefix.clone(),
            receiver,
            buffer: VecDeque::new(),
            delivered: from,
            promised: from,
            scanned: from,
        })
    }

    /// Waits for the next change. Dropping the future loses nothing. After an error every further
    /// call fails too.
    pub async fn next(&mut self) -> Result<Arc<Event>, WatchError> {
        loop {
            if let Some(event) = self.buffer.pop_front() {
                self.delivered = event.revision;
                return Ok(event);
            }
            match self.fill()? {
                Filled::Yes => {}
                Filled::Gap { until } => self.read_ledger(until).await?,
                Filled::Idle => {
                    if self.receiver.changed().await.is_err() {
                        return Err(WatchError::Closed);
                    }
                }
            }
        }
    }

    /// Like [`Self::next`], but `None` once all changes up to a published revision were returned.
    pub async fn next_until(&mut self, end: u64) -> Result<Option<Arc<Event>>, WatchError> {
        loop {
            if let Some(event) = self.buffer.pop_front() {
                self.delivered = event.revision;
                return Ok(Some(event));
            }
            match self.fill()? {
                Filled::Yes => {}
                Filled::Gap { until } => self.read_ledger(until).await?,
                Filled::Idle if self.progress() >= end => return Ok(None),
                Filled::Idle => {
                    if self.receiver.changed().await.is_err() {
                        return Err(WatchError::Closed);
                    }
                }
            }
        }
    }

    /// A revision up to which `next` has returned every change, for bookmarks.
    pub fn progress(&mut self) -> u64 {
        self.promised = self.promised.max(self.reached());
        self.promised
    }

    /// Progress without regard to promised bookmarks.
    fn reached(&mut self) -> u64 {
        if !self.buffer.is_empty() {
            return self.delivered;
        }
        let cache = self.shared.cache();
        if self.receiver.borrow().last() > self.scanned {
            return self.delivered;
        }
        // Nothing up to here concerns it, so that the compaction of all that does not end it.
        self.scanned = self.scanned.max(cache.revision);
        self.scanned
    }

    fn fill(&mut self) -> Result<Filled, WatchError> {
        // After taking the latest change, a watcher sees that there is no other without taking the
        // shared lock.
        let Some(from) = self.receiver.borrow_and_update().after(self.scanned) else {
            return Ok(Filled::Idle);
        };
        self.scanned = from;
        let cache = self.shared.cache();
        if cache.closed {
            return Err(WatchError::Closed);
        }
        let recent = cache.recent(&self.prefix, self.scanned);
        if recent.gap_until > 0 {
            return Ok(Filled::Gap {
                until: recent.gap_until,
            });
        }
        let revision = cache.revision;
        drop(cache);
        let found = recent.events.len();
        let held = recent.events.into_iter().rev().take(BUFFER);
        self.buffer.extend(bounded(held, |event| event.entry.bytes.len()));
        let complete = self.buffer.len() == found;
        self.scanned = match self.buffer.back() {
            Some(event) if !complete => event.revision,
            _ => self.scanned.max(revision),
        };
        Ok(if self.buffer.is_empty() {
            Filled::Idle
        } else {
            Filled::Yes
        })
    }

    async fn read_ledger(&mut self, until: u64) -> Result<(), WatchError> {
        let after = self.scanned;
        if self.shared.class_of(&self.prefix) != Class::Kept {
            return Err(WatchError::Expired { after });
        }
        let changes = self
            .shared
            .changes(&self.prefix, after, until, LEDGER_BUFFER)
            .await
            .map_err(WatchError::Failed)?;
        // Compaction raises the floor before it removes anything, so the changes read are complete
        // if none of the resource is below the floor now.
        if !self.shared.cache().is_complete(&self.prefix, after) {
            return Err(WatchError::Expired { after });
        }
        let found = changes.len();
        let held = bounded(changes, |change| change.record.bytes.len());
        self.buffer
            .extend(held.map(|change| Arc::new(event(&self.shared, change))));
        self.scanned = match self.buffer.back() {
            Some(last) if found == LEDGER_BUFFER || self.buffer.len() < found => last.revision,
            _ => until,
        };
        Ok(())
    }
}

/// Takes as many changes as a watcher may buffer.
fn bounded<T>(all: impl IntoIterator<Item = T>, size: impl Fn(&T) -> usize) -> impl Iterator<Item = T> {
    let mut bytes = 0;
    all.into_iter().take_while(move |one| {
        let fits = bytes < BUFFER_BYTES;
        bytes += size(one);
        fits
    })
}

/// Converts a change of the past to an event.
pub(crate) fn event(shared: &Shared, change: crate::Change) -> Event {
    let record = change.record;
    let entry_of = |revision, bytes: bytes::Bytes| {
        let attributes = (shared.options.index)(&record.key, &bytes);
        Entry::new(record.key.clone(), revision, bytes, attributes)
    };
    let prev = change.previous.map(|bytes| entry_of(record.previous, bytes));
    let entry = entry_of(record.revision, record.bytes.clone());
    let kind = match record.operation {
        Operation::Create | Operation::Update => EventKind::Put { prev },
        Operation::Delete => EventKind::Delete { prev },
    };
    Event {
        revision: record.revision,
        kind,
        entry,
    }
}
