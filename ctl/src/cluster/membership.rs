//! Nodes that join by a bootstrap token, and leave.

pub(crate) mod discovery;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod token;
