//! The store of the control plane: an append-only ledger with one revision counter for all kinds, a cache that serves every
//! read, and watches.
//!
//! ```text
//! commit(Write) ─► queue ─► the writer: check preconditions ─► one transaction ─► publish ─► acknowledge
//!                                        (cache + this batch)   (fsync)            │
//!                            get, list ◄── newest version of each object ◄─────────┤
//!                            Watch::next ◄── ring of recent changes, then ledger ◄─┘
//! ```
//!
//! A ledger may be shared by several processes. Each of them is such a writer; what the others append is published like its
//! own, in the same order everywhere, and who was overtaken decides again ([`Backend::follow`]).
//!
//! What holds, always:
//!
//! * A write is acknowledged when it is on disk, and readers and watchers see nothing that is not. This is so for every
//!   [`Class`]: group commit makes it cheap enough that leases and events need no exception.
//! * Revisions have no gaps and never go back, over crashes too. A batch that fails leaves no trace, and later writes go on.
//! * A watcher sees each change once and in order, or is told [`WatchError::Expired`]. It is never waited for.
//! * With [`Options::kept`], superseded versions are moved behind the ledger before they are removed from it, and
//!   [`Store::list_at`] shows the objects as they were.
//! * Every queue, batch, ring and buffer is bounded.

mod backend;
mod cache;
mod committer;
mod entry;
mod follow;
mod fresh;
mod key;
mod ledger;
mod options;
mod past;
mod pool;
mod retention;
mod shared;
mod store;
mod value;
mod watch;
mod write;
mod writer;

pub use backend::{
    Backend, BackendError, Change, CopyError, Followed, History, Limits, Loaded, Lock, Memory, Newest, Operation,
    Peers, Record, Sqlite, Wake, check_copy, copy, outdate,
};
pub use entry::{Attributes, Entry, Event, EventKind, Fields, Labels, List, Version};
pub use fresh::FreshError;
pub use key::{InvalidKey, Key, Prefix};
pub use options::{Kept, OpenError, Options};
pub use past::{At, Moment, Past, PastError, Since};
pub use store::{ListAt, ListError, Store};
pub use value::{InvalidValue, Value};
pub use watch::{Watch, WatchError};
pub use write::{Class, CommitError, Condition, Guard, Seen, Write};
