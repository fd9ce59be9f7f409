//! The store of the control plane: an append-only ledger with one revision counter for all kinds, a
//! cache that serves every read, and watches.
//!
//! ```text
//! commit(Write) ─► queue ─► the writer: check preconditions ─► one transaction ─► publish ─► acknowledge
//!                                        (cache + this batch)   (fsync)            │
//!                            get, list ◄── newest version of each object ◄─────────┤
//!                            Watch::next ◄── ring of recent changes, then ledger ◄─┘
//! ```
//!
//! Several processes may share a ledger. Each of them has such a writer; changes of the others are
//! published like its own, in the same order everywhere, and a writer that was overtaken decides
//! again ([`Backend::follow`]).
//!
//! * `object`: keys, values and entries; `write`: from the queue to the acknowledgement
//! * `read`: the cache, the past and watches; `backend`: ledgers in SQLite and in memory
//! * `store`: the handle, which puts them together
//!
//! Invariants:
//!
//! * A write is acknowledged when it is on disk, and readers and watchers see no write that is not.
//!   This holds for every [`Class`]: group commit makes it cheap enough that leases and events need
//!   no exception.
//! * Revisions have no gaps and never go back, even over crashes. A batch that fails leaves no trace,
//!   and later writes go on.
//! * A watcher sees each change once and in order, or gets [`WatchError::Expired`]. The writer never
//!   waits for it.
//! * With [`Options::kept`], superseded versions are archived before they are removed from the
//!   ledger, and [`Store::list_at`] shows the objects as they were.
//! * Every queue, batch, ring and buffer is bounded.

mod backend;
mod object;
mod options;
mod read;
mod shared;
mod store;
mod write;

pub use backend::{
    Backend, BackendError, Cell, Change, CopyError, Followed, History, Limits, Loaded, Lock, Measure, Measures, Memory,
    Moment, Newest, Operation, Past, PastError, Peers, Record, Since, Sql, SqlError, Sqlite, Wake, check_copy, copy,
    outdate,
};
pub use object::entry::{Attributes, Entry, Event, EventKind, Fields, Labels, List, Version};
pub use object::key::{InvalidKey, Key, Prefix};
pub use object::value::{InvalidValue, Value};
pub use options::{Kept, OpenError, Options};
pub use read::fresh::FreshError;
pub use read::past::{At, PastList};
pub use read::watch::{Watch, WatchError};
pub use store::{ListAt, ListError, Store};
pub use write::{Class, CommitError, Condition, Guard, Seen, Write};
