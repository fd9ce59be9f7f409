//! Field management: `metadata.managedFields`, and server-side apply, which merges by it.
//!
//! ```text
//! live, new ─► compare ─► update: moves fields between managers ─► managedFields
//! live, applied ─► check ─► merge ─► prune ─► compare ─► apply: conflicts, or the new object and its entries
//! ```
//!
//! Objects are walked as JSON along their [`Schema`](crate::schema::Schema), which knows lists with
//! keys, sets, and atomic values. Stored objects keep their entries as text, which [`splice`]
//! inserts and removes: entries are decoded only when they are needed.

mod apply;
mod entries;
mod last_applied;
pub mod mutation;
pub(crate) mod raw;
mod set;
pub mod splice;
mod typed;
mod update;
mod versions;

pub use apply::{Application, Applied, ApplyError, Conflict, apply, check_shape, conflict_message};
pub use entries::{Entry, Managed, Operation};
pub use set::Set;
pub use typed::compare::{Comparison, compare};
pub use typed::shape::{Keys, Members, Scalar, Shape, Types};
pub use update::{MAX_UPDATERS, Writer, update};
pub use versions::{Change, Conversion, Conversions, Versioning};

/// Fields of metadata that no manager owns.
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

/// Removes fields that no manager owns: names, and fields that only the server writes.
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
