//! Controllers that deal with objects of every kind.

pub(crate) mod garbage;
pub(crate) mod namespaces;
pub(crate) mod quotas;
