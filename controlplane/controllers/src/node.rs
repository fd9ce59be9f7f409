//! Controllers of nodes.

pub(crate) mod nodes;
pub(crate) mod ttl;
