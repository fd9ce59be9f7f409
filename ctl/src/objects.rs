//! Commands that read and change objects of any kind.

pub(crate) mod apply;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod get;
pub(crate) mod past;
pub(crate) mod rollout;
pub(crate) mod scale;
