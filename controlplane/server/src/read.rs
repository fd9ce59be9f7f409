//! Verbs that read objects.

pub(crate) mod component_status;
pub(crate) mod get;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod usage;
pub(crate) mod watch;
