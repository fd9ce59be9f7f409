//! Reads: of the newest versions, of those at a point in time, and of changes.

pub(crate) mod cache;
pub(crate) mod fresh;
pub(crate) mod news;
pub(crate) mod past;
pub(crate) mod watch;
