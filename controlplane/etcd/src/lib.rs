//! A ledger of the control plane in etcd, for several control planes at once.
//!
//! ```text
//! {prefix}/head       the newest revision
//! {prefix}/log/{n}    the change of revision n: key, operation, previous revision, bytes; the newest one of each object, and others
//! until they are compacted
//! {prefix}/floor      changes up to here are incomplete
//! {prefix}/swept      progress of compaction
//! {prefix}/reserve/   space that is given to deletions when etcd's quota is used up
//! {prefix}/moved      the revision at which the ledger was moved elsewhere; it has no head then
//! ```
//!
//! The ledger has its own revisions, without gaps, as in a single-process database: a batch is one
//! transaction on the condition that `head` is still what the writer knows, so its decisions are
//! based on the newest state. A writer that was overtaken reads the changes before it, and decides
//! again. That also settles a request without an answer: it is sent again, and is either done now
//! or finds itself done. If the retry is refused, for lack of space for instance, the log tells
//! whether the first attempt was done; until it does, the result is unknown.
//!
//! Changes of other processes arrive through one watch of `log`. etcd's own revisions matter only
//! for resuming that watch.

mod address;
mod backend;
mod feed;
mod history;
mod ledger;
mod members;
mod moving;
mod room;
mod row;

use std::pin::Pin;

pub use address::{Address, Identity, InvalidAddress};
pub use backend::Etcd;
pub use members::Failure;
pub use moving::{MoveError, end, fill, read};

/// Boxed future: an `async fn` is compiled again, with all of the client, in each crate that awaits
/// it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Reason why the ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The certificates cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// No member answers correctly.
    #[error("ask etcd at {members}")]
    Ask {
        /// The members.
        members: String,
        /// The cause.
        #[source]
        source: Failure,
    },
    /// The prefix is empty although it had data before.
    #[error(
        "etcd at {address} does not hold what this cluster had there: name the right one, or take what is there (--accept-data-loss)"
    )]
    Lost {
        /// The members and the prefix.
        address: String,
    },
}
