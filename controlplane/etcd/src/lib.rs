//! The ledger of the control plane in etcd, for several control planes at once.
//!
//! ```text
//! {prefix}/head       the newest revision
//! {prefix}/log/{n}    the change of revision n: key, operation, revision before, bytes; the newest of each object, and others
//!                     until they are compacted
//! {prefix}/floor      changes up to here are no longer all there
//! {prefix}/swept      where removing them is
//! {prefix}/reserve/   room that is given to deletions when etcd has no more
//! ```
//!
//! The ledger has revisions of its own, without gaps, as in a database that one process has for itself: a batch is one
//! transaction upon the condition that `head` is still what the writer knows, so all that it has decided from what it knows
//! is true. A writer that comes second reads what was first, and decides again. That also settles what became of a request
//! without an answer: it is sent again, and either is done now or finds itself done.
//!
//! Changes of others come by one watch of `log`. Nothing rests upon etcd's own revisions but where that watch goes on.

mod address;
mod backend;
mod feed;
mod history;
mod ledger;
mod members;
mod room;
mod row;

pub use address::{Address, Identity, InvalidAddress};
pub use backend::Etcd;
pub use members::Failure;

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
