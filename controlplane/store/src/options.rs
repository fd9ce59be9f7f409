//! What a store is opened with, and why it may not open.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Attributes, BackendError, Class, Key};

/// The bounds of the past that is kept behind the ledger, for reads at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// How long superseded versions are kept.
    pub age: Duration,
    /// How many bytes on the disk they take at most.
    pub bytes: u64,
}

/// What a store is opened with.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long the past is kept for watches and exact lists.
    pub retention: Duration,
    /// How many bytes of superseded versions are kept at most.
    pub retention_bytes: u64,
    /// How many changes the ring holds.
    pub ring_events: usize,
    /// How many bytes of objects the ring holds.
    pub ring_bytes: usize,
    /// Gives what selectors match, for objects read from the disk.
    pub index: fn(&Key, &[u8]) -> Attributes,
    /// How much of a resource's past is kept; the argument is `{group or core}/{plural}`.
    pub class: fn(&str) -> Class,
    /// What is kept of the past behind the ledger; nothing where it is kept for watches alone.
    pub kept: Option<Kept>,
    /// The wall clock, in milliseconds since 1970: when a version was written.
    pub clock: fn() -> u64,
    /// There was a database already: one that is missing or empty is lost.
    pub existed: bool,
    /// Opens what is left of a database that has lost acknowledged writes, instead of refusing it.
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

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the database open.
    #[error("{} is in use by process {holder}", path.display())]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process id that the holder wrote down.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("take the lock beside the database")]
    Lock(#[source] std::io::Error),
    /// The database's files cannot be made or read.
    #[error("open the database's files")]
    Create(#[source] std::io::Error),
    /// The database is damaged. It is left as it is: restore a backup, or move it away to begin anew.
    #[error("{} is damaged: {finding}", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What is wrong with it.
        finding: String,
    },
    /// Acknowledged writes are gone. It is left as it is: restore a backup, or open it with
    /// [`Options::accept_loss`].
    #[error(
        "{} has lost what was acknowledged: {finding}; restore a backup, or take what is left (--accept-data-loss)",
        path.display()
    )]
    Lost {
        /// The database.
        path: PathBuf,
        /// What is missing.
        finding: String,
    },
    /// The file is a database of something else.
    #[error("{} is not a database of this program", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// The database was written by another version.
    #[error("the database has version {found} of the tables; this program knows {supported}")]
    Version {
        /// What the file says.
        found: i32,
        /// What this program reads.
        supported: i32,
    },
    /// The backend could not give what it holds.
    #[error("load the database")]
    Load(#[source] BackendError),
    /// The writer's thread could not be started.
    #[error("start the writer's thread")]
    Thread(#[source] std::io::Error),
}
