//! Plugins for pods, and for what holds them: their namespace's limits, their node.

pub(super) mod limits;
pub(super) mod pod_security;
pub(super) mod priority;
pub(super) mod resize;
pub(super) mod service_account;
pub(super) mod tolerations;
pub(crate) mod topology;
