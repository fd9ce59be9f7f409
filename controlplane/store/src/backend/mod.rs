//! Backends of the ledger. Code above this interface knows no SQL, and code below it knows no
//! preconditions or watchers.

mod memory;
mod sqlite;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Key, Prefix};

pub use memory::Memory;
pub use sqlite::{Cell, CopyError, Lock, Measure, Measures, Sql, SqlError, Sqlite, check_copy, copy, outdate};

/// Most bytes of objects that one read of the past may return.
pub(crate) const MOST_BYTES: usize = 32 << 20;

/// Operation of a ledger row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The object was created.
    Create,
    /// The object was replaced.
    Update,
    /// The object was removed; the row holds its final bytes.
    Delete,
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The revision: the row's number.
    pub revision: u64,
    /// The object.
    pub key: Key,
    /// Operation of the row.
    pub operation: Operation,
    /// Revision of the previous version; 0 if there is none.
    pub previous: u64,
    /// Remove the previous version in the same transaction.
    pub drop_previous: bool,
    /// Time of the write in milliseconds since 1970; 0 if it was not recorded.
    pub time: u64,
    /// The complete JSON.
    pub bytes: Bytes,
}

/// A row of the past together with the previous version.
#[derive(Debug, Clone)]
pub struct Change {
    /// The row.
    pub record: Record,
    /// Bytes of the version that was replaced or removed.
    pub previous: Option<Bytes>,
}

/// Content of a backend when it is opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest revision that was ever acknowledged.
    pub revision: u64,
    /// Changes at or below this revision are incomplete.
    pub floor: u64,
    /// The newest version of every object.
    pub heads: Vec<Record>,
}

impl Loaded {
    /// True if both have the same objects, each with the same bytes at the same revision.
    pub fn has_same_objects(&self, other: &Self) -> bool {
        let sorted = |loaded: &Self| {
            let each = loaded.heads.iter();
            let mut objects: Vec<_> = each
                .map(|record| (record.revision, record.key.clone(), record.bytes.clone()))
                .collect();
            objects.sort_unstable();
            objects
        };
        sorted(self) == sorted(other)
    }
}

/// Largest batch for [`Backend::append`]; a single larger request is passed alone.
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

/// Changes of other processes in a shared ledger.
#[derive(Debug)]
pub enum Followed {
    /// Their changes, in order and without a gap after the last one that this process knows.
    Changes(Vec<Record>),
    /// The whole ledger: some changes in between are no longer available.
    Anew(Loaded),
}

/// Wakes the writer, which then calls [`Backend::follow`].
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Future of the newest revision.
pub type Newest<'a> = Pin<Box<dyn Future<Output = Result<u64, BackendError>> + Send + 'a>>;

/// The other processes that append to the same ledger.
pub trait Peers: Send + Sync {
    /// Returns a revision that includes every write any process acknowledged before the call.
    fn newest(&self) -> Newest<'_>;
}

/// Storage of the ledger. Called by one thread at a time.
///
/// Several processes may share a ledger: each decides upon the newest revision that it knows, and
/// [`Backend::append`] refuses one that was overtaken, which then follows the others first. So
/// revisions have no gaps there either, and all preconditions hold exactly.
pub trait Backend: Send {
    /// Loads all objects. Called once, before any other method.
    fn load(&mut self) -> Result<Loaded, BackendError>;

    /// Stores all records or none, durably: they are on disk when this returns `Ok`. In a shared
    /// ledger the first record must follow the newest one of all processes: otherwise
    /// [`BackendError::Overtaken`].
    fn append(&mut self, records: &[Record]) -> Result<(), BackendError>;

    /// Removes versions superseded at or below `floor`, visiting at most `limit` rows. `true` if
    /// there are more to visit.
    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError>;

    /// A reader of the past that works beside the writer.
    fn history(&self) -> Result<Arc<dyn History>, BackendError>;

    /// True if compaction up to a floor has work that was not there when it last ended.
    fn has_more(&self, _floor: u64) -> bool {
        false
    }

    /// Keeps a reserve on the disk for deletions, as far as there is space.
    fn reserve(&mut self) -> bool {
        true
    }

    /// Releases the reserve for the writes that follow. `false` if there was none.
    fn release(&mut self) -> bool {
        false
    }

    /// Largest batch for one append.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// The other processes, if the ledger is shared. Appending then also waits for a network: only
    /// the writer's own thread does it.
    fn peers(&self) -> Option<Arc<dyn Peers>> {
        None
    }

    /// Calls `wake` from now on whenever there is something to follow. Called once, after
    /// [`Backend::load`].
    fn listen(&mut self, _wake: Wake) {}

    /// Changes that other processes have appended since the last call, as far as they are known
    /// here.
    fn follow(&mut self) -> Result<Vec<Followed>, BackendError> {
        Ok(Vec::new())
    }

    /// Flushes its data and closes its files.
    fn close(&mut self) -> Result<(), BackendError>;
}

/// Reads of the past. Reads at a point in time need a backend with an archive; others refuse them.
pub trait History: Send + Sync {
    /// Up to `limit` changes under `prefix` with `after < revision <= until`, in order.
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError>;

    /// Start of the known past.
    fn since(&self) -> Result<Since, BackendError> {
        Ok(Since::default())
    }

    /// The newest moment that is not after `time`, in milliseconds since 1970.
    fn moment(&self, time: u64) -> Result<Moment, BackendError> {
        Ok(Moment { revision: 0, time })
    }

    /// Time of the newest known write up to a revision, in milliseconds since 1970; 0 if unknown.
    fn written(&self, _revision: u64) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// Versions under `prefix`, or of the one key, that were the newest at a moment and are
    /// superseded now. Versions compacted meanwhile may be missing: [`History::since`] shows that
    /// afterwards.
    fn superseded(&self, _prefix: &Prefix, _only: Option<&Key>, _at: Moment) -> Result<Vec<Record>, PastError> {
        Err(PastError::NotKept)
    }

    /// Up to `limit` versions of an object that were written before a revision, newest first.
    fn versions(&self, _key: &Key, _before: u64, _limit: usize) -> Result<Vec<Past>, PastError> {
        Err(PastError::NotKept)
    }

    /// Newest known revision that deleted an object; 0 if there is none.
    fn deleted(&self, _key: &Key) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// False while superseded versions cannot be archived.
    fn archives(&self) -> bool {
        true
    }

    /// Size of the ledger's file in bytes, if it has one.
    fn size(&self) -> Option<u64> {
        None
    }

    /// True if reads wait for a disk and must not run on an asynchronous thread.
    fn blocks(&self) -> bool;

    /// The floor when changes were last read, if other processes raise it too.
    fn floor(&self) -> u64 {
        0
    }
}

/// A point of the past by both of its measures: the last revision and the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The newest revision.
    pub revision: u64,
    /// Milliseconds since 1970.
    pub time: u64,
}

/// Start of the known past.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// Everything that existed at this revision and later is known.
    pub revision: u64,
    /// Everything that existed at this time and later is known; milliseconds since 1970.
    pub time: u64,
}

impl Since {
    pub(crate) fn includes(self, moment: Moment) -> bool {
        moment.revision >= self.revision && moment.time >= self.time
    }
}

/// A version of an object, with the time in which it was the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// Revision that wrote it.
    pub revision: u64,
    /// Time of the write in milliseconds since 1970; 0 if it was not recorded.
    pub began: u64,
    /// Revision that superseded it; `None` for the current version.
    pub until: Option<u64>,
    /// Time of that revision; 0 for the current version, or if it was not recorded.
    pub ended: u64,
    /// True if it was superseded by the object's deletion.
    pub deleted: bool,
    /// The complete JSON.
    pub bytes: Bytes,
}

/// Reason why the past cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PastError {
    /// The requested point is compacted, or lies before the archive began.
    #[error("the past before revision {} is no longer known", since.revision)]
    Before {
        /// Start of the known past.
        since: Since,
    },
    /// The revision is in the future.
    #[error("revision {revision} has not been reached; the newest is {newest}")]
    Future {
        /// The requested revision.
        revision: u64,
        /// The newest revision.
        newest: u64,
    },
    /// The resource keeps no history.
    #[error("the past of this resource is not kept")]
    NotKept,
    /// The result is larger than the limit.
    #[error("more than {MOST_BYTES} bytes of objects were there")]
    TooLarge,
    /// The ledger or the archive could not be read.
    #[error("read the past")]
    Failed(#[source] Arc<BackendError>),
}

impl From<BackendError> for PastError {
    fn from(error: BackendError) -> Self {
        Self::Failed(Arc::new(error))
    }
}

/// Reason why a backend failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The disk, or the quota of the database, is full.
    #[error("no space left for the database")]
    Full(#[source] Box<dyn Error + Send + Sync>),
    /// Reading or writing failed.
    #[error("the database cannot be read or written")]
    Io(#[source] Box<dyn Error + Send + Sync>),
    /// The database's own structure is damaged.
    #[error("the database is damaged")]
    Corrupt(#[source] Box<dyn Error + Send + Sync>),
    /// Another process appended first; nothing was stored.
    #[error("another process has written meanwhile")]
    Overtaken,
    /// There was no answer in time: the records may be stored, or may still be.
    #[error("the database did not answer in time")]
    Unknown(#[source] Box<dyn Error + Send + Sync>),
    /// The row does not match its checksum.
    #[error("the row of revision {revision} is damaged")]
    Damaged {
        /// The row's number.
        revision: u64,
    },
}
