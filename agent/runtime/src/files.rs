//! Files that every runtime keeps: its state directory, root file systems and their labels,
//! records, and directories made ahead.

pub(crate) mod label;
pub(crate) mod opened;
pub(crate) mod overlay;
pub(crate) mod record;
pub(crate) mod spares;
pub(crate) mod spread;
