//! Where the ledger is kept. Nothing above this seam knows SQL, and nothing below it knows preconditions or watchers.

mod memory;
mod sqlite;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::past::{Moment, Past, PastError, Since};
use crate::{Key, Prefix};

pub use memory::Memory;
pub use sqlite::{CopyError, Lock, Sqlite, check_copy, copy, outdate};

/// What a row of the ledger says about its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The object came to be.
    Create,
    /// The object was replaced.
    Update,
    /// The object was removed; the row holds its final bytes.
    Delete,
}

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The revision: the row's number.
    pub revision: u64,
    /// The object.
    pub key: Key,
    /// What happened to it.
    pub operation: Operation,
    /// The revision of the version before; 0 when there was none.
    pub previous: u64,
    /// Remove the version before in the same transaction.
    pub drop_previous: bool,
    /// When it was written, in milliseconds since 1970; 0 where that was not noted.
    pub time: u64,
    /// The complete JSON.
    pub bytes: Bytes,
}

/// A row of the past together with the version before it.
#[derive(Debug, Clone)]
pub struct Change {
    /// The row.
    pub record: Record,
    /// The bytes of the version that it replaced or removed.
    pub previous: Option<Bytes>,
}

/// What a backend holds when it is opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest revision that was ever acknowledged.
    pub revision: u64,
    /// Changes at or below this revision are no longer all there.
    pub floor: u64,
    /// The newest version of every object.
    pub heads: Vec<Record>,
}

/// The most that one call of [`Backend::append`] is given, a single request that is larger aside.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Changes.
    pub writes: usize,
    /// Bytes of objects.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            writes: 256,
            bytes: 8 << 20,
        }
    }
}

/// A part of what other processes have done to a ledger that several share.
#[derive(Debug)]
pub enum Followed {
    /// Their changes, in order and without a gap after the last one that this process knew.
    Changes(Vec<Record>),
    /// The whole ledger anew: some of what was between is no longer to be had.
    Anew(Loaded),
}

/// Wakes the writer, to have it call [`Backend::follow`].
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The newest revision, once it is known.
pub type Newest<'a> = Pin<Box<dyn Future<Output = Result<u64, BackendError>> + Send + 'a>>;

/// The other processes that append to the same ledger.
pub trait Peers: Send + Sync {
    /// A revision that no write is above which any process has acknowledged before the call.
    fn newest(&self) -> Newest<'_>;
}

/// Keeps the ledger. Called by one thread at a time.
///
/// Several processes may share one: each decides upon the newest revision that it knows, and [`Backend::append`] tells who
/// was overtaken to follow the others first. So revisions have no gaps there either, and all preconditions hold exactly.
pub trait Backend: Send {
    /// Everything that exists. Called once, before anything else.
    fn load(&mut self) -> Result<Loaded, BackendError>;

    /// Stores all records or none, durably: they are on disk when this returns `Ok`. In a ledger that is shared, only when
    /// the first of them follows the newest there is, wherever that comes from: otherwise [`BackendError::Overtaken`].
    fn append(&mut self, records: &[Record]) -> Result<(), BackendError>;

    /// Forgets versions superseded at or below `floor`, visiting at most `limit` rows. `true` when more are left to visit.
    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError>;

    /// A reader of the past, for use beside the writer.
    fn history(&self) -> Result<Arc<dyn History>, BackendError>;

    /// Whether compaction up to a floor has work to do that it did not have when it last ended.
    fn has_more(&self, _floor: u64) -> bool {
        false
    }

    /// Sees to it that room is kept on the disk for deletions, as far as it has any.
    fn reserve(&mut self) -> bool {
        true
    }

    /// Gives the room that was kept to the writes that follow. `false` when none was.
    fn release(&mut self) -> bool {
        false
    }

    /// The most that is appended at once.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// The others, where the ledger is shared. It then waits for a network, too: only the writer's own thread appends.
    fn peers(&self) -> Option<Arc<dyn Peers>> {
        None
    }

    /// Begins to call `wake` whenever there is something to follow. Called once, after [`Backend::load`].
    fn listen(&mut self, _wake: Wake) {}

    /// All that others have appended since the last call, as far as it is known here.
    fn follow(&mut self) -> Result<Vec<Followed>, BackendError> {
        Ok(Vec::new())
    }

    /// Writes back what it holds and lets go of its files.
    fn close(&mut self) -> Result<(), BackendError>;
}

/// Reads the past. Reads at a time need a backend that keeps it; others refuse them.
pub trait History: Send + Sync {
    /// Up to `limit` changes under `prefix` with `after < revision <= until`, in order.
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError>;

    /// Where the past begins that is still known.
    fn since(&self) -> Result<Since, BackendError> {
        Ok(Since::default())
    }

    /// The newest moment that is not after a time, in milliseconds since 1970.
    fn moment(&self, time: u64) -> Result<Moment, BackendError> {
        Ok(Moment { revision: 0, time })
    }

    /// Versions under `prefix`, or of the one key, that were the newest at a moment and are superseded now. What has been compacted
    /// meanwhile may be missing: [`History::since`] tells afterwards.
    fn superseded(&self, _prefix: &Prefix, _only: Option<&Key>, _at: Moment) -> Result<Vec<Record>, PastError> {
        Err(PastError::NotKept)
    }

    /// Up to `limit` versions of an object that were written before a revision, the newest first.
    fn versions(&self, _key: &Key, _before: u64, _limit: usize) -> Result<Vec<Past>, PastError> {
        Err(PastError::NotKept)
    }

    /// Whether reading waits for a disk, so that it must not happen on an asynchronous thread.
    fn blocks(&self) -> bool;

    /// The floor that held when changes were last read, where others raise it too.
    fn floor(&self) -> u64 {
        0
    }
}

/// Why a backend could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The disk, or the database's allowance on it, is full.
    #[error("no space left for the database")]
    Full(#[source] Box<dyn Error + Send + Sync>),
    /// Reading or writing failed.
    #[error("the database cannot be read or written")]
    Io(#[source] Box<dyn Error + Send + Sync>),
    /// The database's own structure is damaged.
    #[error("the database is damaged")]
    Corrupt(#[source] Box<dyn Error + Send + Sync>),
    /// Another process has appended first; nothing was stored.
    #[error("another process has written meanwhile")]
    Overtaken,
    /// There was no answer in time: the records may be stored, or may be so later.
    #[error("the database did not answer in time")]
    Unknown(#[source] Box<dyn Error + Send + Sync>),
    /// What was read is not what was written.
    #[error("the row of revision {revision} is damaged")]
    Damaged {
        /// The row's number.
        revision: u64,
    },
}
