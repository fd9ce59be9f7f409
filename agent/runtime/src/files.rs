//! Files that every runtime keeps: root file systems, records, and directories made ahead.

pub(crate) mod overlay;
pub(crate) mod record;
pub(crate) mod spares;
pub(crate) mod spread;
