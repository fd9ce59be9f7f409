//! Files of a volume: walked, labeled, given to a group and measured.

pub(crate) mod label;
pub(crate) mod ownership;
pub(crate) mod usage;
mod walk;
