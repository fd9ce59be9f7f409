//! Who manages which field: `metadata.managedFields`, and server-side apply, which merges by it.
//!
//! ```text
//! live, new ─► compare ─► update: who loses fields, who gains them ─► entries of managedFields
//! live, applied ─► check ─► merge ─► prune ─► compare ─► apply: conflicts, or the new object and its entries
//! ```
//!
//! Objects are walked as JSON along their [`Schema`](crate::schema::Schema), which knows lists with keys, sets, and what
//! is owned as a whole. Stored objects keep their entries as text, which [`splice`] puts in and takes out: nobody pays for
//! the entries of an object that nobody asks for.

mod apply;
mod check;
mod compare;
mod entries;
mod fields;
mod key;
mod last_applied;
mod merge;
pub mod mutation;
pub(crate) mod raw;
mod set;
mod shape;
pub mod splice;
mod types;
mod update;
mod versions;

pub use apply::{Application, Applied, ApplyError, Conflict, apply, check_shape, conflict_message};
pub use compare::{Comparison, compare};
pub use entries::{Entry, Managed, Operation};
pub use set::Set;
pub use shape::{Keys, Members, Shape, Types};
pub use types::Scalar;
pub use update::{MAX_UPDATERS, Writer, update};
pub use versions::{Change, Conversion, Conversions, Versioning};

/// Fields of metadata that nobody owns.
const UNOWNED: [&str; 9] = [
    "f:clusterName",
    "f:creationTimestamp",
    "f:generation",
    "f:managedFields",
    "f:name",
    "f:namespace",
    "f:resourceVersion",
    "f:selfLink",
    "f:uid",
];

/// Takes out what nobody owns: names, and what the server alone writes.
fn strip(set: &mut Set) {
    set.remove("f:apiVersion");
    set.remove("f:kind");
    set.change("f:metadata", |node| {
        node.member = false;
        for element in UNOWNED {
            node.children.remove(element);
        }
    });
}
