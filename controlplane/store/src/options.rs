//! Options of a store, and errors of opening one.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Attributes, BackendError, Class, Key};

/// Limits of the archive of superseded versions, for reads of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Longest time that superseded versions are kept.
    pub age: Duration,
    /// Most bytes that they take on the disk.
    pub bytes: u64,
}

/// Options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time that superseded versions are kept for watches and exact lists.
    pub retention: Duration,
    /// Most bytes of superseded versions that are kept.
    pub retention_bytes: u64,
    /// Capacity of the ring, in changes.
    pub ring_events: usize,
    /// Capacity of the ring, in bytes of objects.
    pub ring_bytes: usize,
    /// Returns labels and fields for selectors, for objects read from the disk.
    pub index: fn(&Key, &[u8]) -> Attributes,
    /// Returns the history that a resource keeps; the argument is `{group or core}/{plural}`.
    pub class: fn(&str) -> Class,
    /// Bounds of the archive of superseded versions; `None` keeps them for watches alone.
    pub kept: Option<Kept>,
    /// The wall clock, in milliseconds since 1970, for the time stamps of versions.
    pub clock: fn() -> u64,
    /// A database existed before: if it is missing or empty, it was lost.
    pub existed: bool,
    /// Opens a database that has lost acknowledged writes with the rest of its data, instead of
    /// refusing it.
    pub accept_loss: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            retention: Duration::from_mins(5),
            retention_bytes: 256 << 20,
            ring_events: 4096,
            ring_bytes: 16 << 20,
            index: |_, _| Attributes::default(),
            class: |_| Class::Kept,
            kept: None,
            clock: || 0,
            existed: false,
            accept_loss: false,
        }
    }
}

/// Reason why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the database open.
    #[error("{} is in use by process {holder}", path.display())]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process id in the lock file.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("take the lock beside the database")]
    Lock(#[source] std::io::Error),
    /// The database's files cannot be created or read.
    #[error("open the database's files")]
    Create(#[source] std::io::Error),
    /// The database is damaged. It is left untouched: restore a backup, or move it away to start
    /// with an empty one.
    #[error("{} is damaged: {finding}", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// Description of the damage.
        finding: String,
    },
    /// Acknowledged writes are gone. The database is left untouched: restore a backup, or open it
    /// with [`Options::accept_loss`].
    #[error(
        "{} has lost what was acknowledged: {finding}; restore a backup, or take what is left (--accept-data-loss)",
        path.display()
    )]
    Lost {
        /// The database.
        path: PathBuf,
        /// Description of the loss.
        finding: String,
    },
    /// The file is the database of another program.
    #[error("{} is not a database of this program", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// The database was written by another version.
    #[error("the database has version {found} of the tables; this program knows {supported}")]
    Version {
        /// Version in the file.
        found: i32,
        /// Version that this program supports.
        supported: i32,
    },
    /// The backend could not load its data.
    #[error("load the database")]
    Load(#[source] BackendError),
    /// The writer's thread could not be started.
    #[error("start the writer's thread")]
    Thread(#[source] std::io::Error),
}
