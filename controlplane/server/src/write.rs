//! The pipeline of writes: verbs that change objects, with admission and field management.

pub(crate) mod admission;
pub(crate) mod amend;
pub(crate) mod apply;
pub(crate) mod binding;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod eviction;
pub(crate) mod managers;
pub(crate) mod owners;
pub(crate) mod patch;
pub(crate) mod scale;
pub(crate) mod update;
