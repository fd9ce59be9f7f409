//! Network namespaces of the sandboxes, and what is known of them over restarts.

pub(super) mod leaving;
pub(crate) mod namespace;
pub(super) mod records;
pub(super) mod slots;
mod users;
