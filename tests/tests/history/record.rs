//! Record of the clients' requests and responses, with their times.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use serde_json::Value;

/// Steps of the one thread that all clients share.
pub(crate) type Moment = u64;

/// An object as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) revision: u64,
    /// Token of the last create or update.
    pub(crate) token: String,
    /// Token of the last patch.
    pub(crate) patched: String,
    /// Number of its updates.
    pub(crate) count: u64,
    pub(crate) left: bool,
}

impl State {
    pub(crate) fn read(object: &Value) -> anyhow::Result<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let needed = |pointer: &str| text(pointer).with_context(|| format!("{pointer} of {object}"));
        Ok(Self {
            name: needed("/metadata/name")?.to_owned(),
            uid: needed("/metadata/uid")?.to_owned(),
            revision: needed("/metadata/resourceVersion")?.parse()?,
            token: needed("/data/token")?.to_owned(),
            patched: text("/data/patched").unwrap_or_default().to_owned(),
            count: needed("/data/count")?.parse()?,
            left: text("/metadata/labels/side") == Some("left"),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Create,
    /// A whole object, on the condition that it is still at this revision.
    Update {
        from: u64,
    },
    Patch,
    /// On the condition, where there is one, that it is still at this revision.
    Delete {
        from: Option<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done; the response has this revision.
    Done(u64),
    /// The object with this uid was deleted; the answer tells no revision.
    Deleted(String),
    Conflict,
    Exists,
    Absent,
    /// The connection broke before the answer.
    Unknown,
}

#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) name: String,
    /// Unique.
    pub(crate) token: String,
    pub(crate) change: Change,
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone)]
pub(crate) enum Read {
    Get {
        name: String,
        state: Option<State>,
    },
    /// A whole list, perhaps in pages, at a revision.
    List {
        revision: u64,
        states: BTreeMap<String, State>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) read: Read,
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
}

/// Requests and responses of all clients.
#[derive(Debug, Default)]
pub(crate) struct Record {
    clock: AtomicU64,
    killed: AtomicBool,
    last: AtomicU64,
    following: AtomicU64,
    writes: Mutex<Vec<Write>>,
    readings: Mutex<Vec<Reading>>,
}

impl Record {
    pub(crate) fn now(&self) -> Moment {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Sets whether connections may break from now on.
    pub(crate) fn killed(&self, killed: bool) {
        self.killed.store(killed, Ordering::SeqCst);
    }

    pub(crate) fn may_break(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// The watchers may stop when they have seen this revision.
    pub(crate) fn last(&self, revision: u64) {
        self.last.store(revision, Ordering::SeqCst);
    }

    /// True if a change came after the last one that every watcher sees.
    pub(crate) fn is_past(&self, revision: u64) -> bool {
        revision > self.last.load(Ordering::SeqCst)
    }

    /// Records the start of a watcher.
    pub(crate) fn follows(&self) {
        self.following.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of watchers that have started.
    pub(crate) fn following(&self) -> u64 {
        self.following.load(Ordering::SeqCst)
    }

    /// True if a watcher that has seen this revision has seen all.
    pub(crate) fn is_last(&self, revision: u64) -> bool {
        let last = self.last.load(Ordering::SeqCst);
        last > 0 && revision >= last
    }

    pub(crate) fn wrote(&self, write: Write) {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
    }

    pub(crate) fn saw(&self, began: Moment, read: Read) {
        let reading = Reading {
            read,
            began,
            ended: self.now(),
        };
        self.readings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(reading);
    }

    pub(crate) fn writes(&self) -> Vec<Write> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn readings(&self) -> Vec<Reading> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A copy of the record with a false entry.
    pub(crate) fn tampered(&self, lie: impl FnOnce(&mut Vec<Write>, &mut Vec<Reading>)) -> Self {
        let (mut writes, mut readings) = (self.writes(), self.readings());
        lie(&mut writes, &mut readings);
        Self {
            last: AtomicU64::new(self.last.load(Ordering::SeqCst)),
            writes: Mutex::new(writes),
            readings: Mutex::new(readings),
            ..Self::default()
        }
    }
}
