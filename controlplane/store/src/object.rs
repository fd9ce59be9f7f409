//! Stored objects: their keys, their values, and entries with what selectors look at.

pub(crate) mod entry;
pub(crate) mod key;
pub(crate) mod value;
