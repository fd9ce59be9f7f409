//! Writes, and their errors.

pub(crate) mod committer;
mod follow;
mod ledger;
pub(crate) mod pool;
pub(crate) mod retention;
pub(crate) mod writer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Attributes, BackendError, Entry, Key, Prefix, Value};

/// A change of one object. Every change is on disk before it is acknowledged.
#[derive(Debug, Clone)]
pub enum Write {
    /// Stores a new object; fails if the key is taken.
    Create {
        /// The object's name.
        key: Key,
        /// Its JSON.
        value: Value,
        /// Labels and fields for selectors.
        attributes: Attributes,
        /// The object that contains the new one (its namespace), which must be unchanged since the
        /// writer saw it.
        within: Option<Seen>,
    },
    /// Replaces an object. A value equal to the stored one changes nothing and takes no revision.
    Update {
        /// The object's name.
        key: Key,
        /// Its JSON.
        value: Value,
        /// Labels and fields for selectors.
        attributes: Attributes,
        /// Revision that the writer has read; the write fails if it is not the newest.
        expected: u64,
    },
    /// Removes an object.
    Delete {
        /// The object's name.
        key: Key,
        /// Revision that the writer has read, if it is a precondition.
        expected: Option<u64>,
        /// The final bytes, shown to watchers.
        last: Value,
    },
}

impl Write {
    /// Key of the written object.
    pub fn key(&self) -> &Key {
        match self {
            Self::Create { key, .. } | Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// True for writes that are allowed when space is short: they free space, are a step toward
    /// that, or take none.
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

/// A version of an object that a writer has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The object's name.
    pub key: Key,
    /// Its revision.
    pub revision: u64,
}

impl Seen {
    /// Records the revision of an entry.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key.clone(),
            revision: entry.revision,
        }
    }
}

/// Precondition of a write on the state of other objects.
#[derive(Clone)]
pub enum Guard {
    /// Precondition on one object.
    Object {
        /// The object's name.
        key: Key,
        /// Returns true if the precondition holds.
        holds: Condition,
    },
    /// No object of a resource has changed after a revision.
    Unchanged {
        /// The whole resource.
        prefix: Prefix,
        /// Revision returned by [`Store::last_change`](crate::Store::last_change).
        since: u64,
    },
}

impl From<Seen> for Guard {
    /// Requires that the object has not changed since.
    fn from(seen: Seen) -> Self {
        let Seen { key, revision } = seen;
        Self::Object {
            key,
            holds: Arc::new(move |entry| entry.is_some_and(|entry| entry.revision == revision)),
        }
    }
}

/// A condition on an object, or on its absence.
pub type Condition = Arc<dyn Fn(Option<&Entry>) -> bool + Send + Sync>;

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object { key, .. } => formatter
                .debug_struct("Object")
                .field("key", key)
                .finish_non_exhaustive(),
            Self::Unchanged { prefix, since } => formatter
                .debug_struct("Unchanged")
                .field("prefix", prefix)
                .field("since", since)
                .finish(),
        }
    }
}

/// History that a resource keeps. Either way a write is on disk before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// All versions, until they are compacted.
    #[default]
    Kept,
    /// Only the newest version: a write removes the previous one in the same transaction, so
    /// renewing a lease forever does not make the database grow. Watchers further behind than the
    /// ring get `Expired`.
    HeadOnly {
        /// Remove the object after this time without a write.
        time_to_live: Option<Duration>,
    },
}

/// Reason why a write failed.
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
        /// Current revision of the object.
        actual: u64,
    },
    /// Create: the object that contains the new one has changed since the writer saw it.
    #[error("{key} has changed meanwhile")]
    Moved {
        /// Key of the object that has changed or is gone.
        key: Key,
    },
    /// Objects have changed since the writer saw them.
    #[error("objects under {} have changed meanwhile", prefix.as_str())]
    Changed {
        /// Their resource.
        prefix: Prefix,
    },
    /// The precondition does not hold.
    #[error("{key} does not allow the write")]
    Guarded {
        /// Key of the object that the precondition is about.
        key: Key,
    },
    /// An accompanying write cannot be done, so nothing was written.
    #[error("write {index} of those that go with it was refused")]
    Accompanying {
        /// Index of that write.
        index: usize,
        /// Its error.
        #[source]
        source: Box<CommitError>,
    },
    /// The disk, or the quota of the database, is full. Retry when there is space.
    #[error("no space left for the write")]
    Full(#[source] Arc<BackendError>),
    /// The write did not reach the disk. It may be retried.
    #[error("the write did not reach the disk")]
    Failed(#[source] Arc<BackendError>),
    /// The database did not answer in time: the write may have been done, or may still be.
    #[error("the database did not answer in time")]
    Unknown(#[source] Arc<BackendError>),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}
