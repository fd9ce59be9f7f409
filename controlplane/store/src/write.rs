//! Requests to change something, and how they fail.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Attributes, BackendError, Entry, Key, Value};

/// One change of one object. All of them are on disk before they are acknowledged.
#[derive(Debug, Clone)]
pub enum Write {
    /// Stores a new object; fails when the key is taken.
    Create {
        /// The object's name.
        key: Key,
        /// Its JSON.
        value: Value,
        /// What selectors match.
        attributes: Attributes,
        /// The object that the new one lives in (its namespace), which must still be as the writer saw it.
        within: Option<Seen>,
    },
    /// Replaces an object. A value equal to the stored one changes nothing and takes no revision.
    Update {
        /// The object's name.
        key: Key,
        /// Its JSON.
        value: Value,
        /// What selectors match.
        attributes: Attributes,
        /// The revision that the writer has read.
        expected: u64,
    },
    /// Removes an object.
    Delete {
        /// The object's name.
        key: Key,
        /// The revision that the writer has read, if it matters.
        expected: Option<u64>,
        /// The final bytes, shown to watchers.
        last: Value,
    },
}

impl Write {
    /// The object that is written.
    pub fn key(&self) -> &Key {
        match self {
            Self::Create { key, .. } | Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Whether it makes room, or is on the way to it, or takes none: what is done when room is
    /// short.
    pub(crate) fn makes_room(&self, class: Class) -> bool {
        match self {
            Self::Create { .. } => false,
            Self::Update { value, .. } => class != Class::Kept || value.is_being_deleted(),
            Self::Delete { .. } => true,
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Create { value, .. } | Self::Update { value, .. } | Self::Delete { last: value, .. } => value.len(),
        }
    }
}

/// A version of an object that a writer has looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The object's name.
    pub key: Key,
    /// Its revision.
    pub revision: u64,
}

impl Seen {
    /// What was seen of an entry.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key.clone(),
            revision: entry.revision,
        }
    }
}

/// What must be so of an object when a change is stored, of another one mostly.
#[derive(Clone)]
pub struct Guard {
    /// The object's name.
    pub key: Key,
    /// Whether it is so.
    pub holds: Condition,
}

/// A condition on an object, if there is one.
pub type Condition = Arc<dyn Fn(Option<&Entry>) -> bool + Send + Sync>;

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Guard")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// How much of a resource's past is kept. Either way a write is on disk before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// All versions, until they are compacted.
    #[default]
    Kept,
    /// Only the newest version: a write removes the one before it in the same transaction, so renewing a lease for ever
    /// does not make the database grow. Watchers further behind than the ring are told `Expired`.
    HeadOnly {
        /// Remove the object when it has not been written for this long.
        time_to_live: Option<Duration>,
    },
}

/// Why nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// Create: the key is taken.
    #[error("the object already exists")]
    Exists,
    /// Update or delete: there is no such object.
    #[error("the object does not exist")]
    NotFound,
    /// The object has another revision than the writer expected.
    #[error("the object has changed: its revision is {actual}")]
    Conflict {
        /// The revision it has now.
        actual: u64,
    },
    /// Create: what the object was to live in is no longer as the writer saw it.
    #[error("{key} has changed meanwhile")]
    Moved {
        /// What has changed, or is gone.
        key: Key,
    },
    /// What the writer has set as a condition is not so.
    #[error("{key} does not allow the write")]
    Guarded {
        /// The object that the condition is about.
        key: Key,
    },
    /// One of the writes that go with it (in their order) cannot be done, so nothing was done.
    #[error("write {index} of those that go with it was refused")]
    Accompanying {
        /// Which one.
        index: usize,
        /// Why.
        #[source]
        source: Box<CommitError>,
    },
    /// The disk, or the database's allowance on it, is full. Retry when there is room.
    #[error("no space left for the write")]
    Full(#[source] Arc<BackendError>),
    /// The write did not reach the disk. It may be tried again.
    #[error("the write did not reach the disk")]
    Failed(#[source] Arc<BackendError>),
    /// The database did not answer in time: the write may have been done, or may be so yet.
    #[error("the database did not answer in time")]
    Unknown(#[source] Arc<BackendError>),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}
