//! Controllers of nodes.

pub(crate) mod nodes;
pub(crate) mod pod_gc;
pub(crate) mod ttl;
