//! Resource usage and metrics.
//!
//! * [`own`], [`cadvisor`], [`probes`], [`measures`], [`slis`]: the endpoints; [`proxy`]: those of the service proxy
//! * [`disks`], [`disk_usage`], [`network`], [`pulls`]: what they measure; [`requests`]: what they share
//! * [`prometheus`]: the text format

pub(super) mod cadvisor;
mod disk_usage;
mod disks;
pub(super) mod measures;
mod network;
pub(crate) mod own;
pub(crate) mod probes;
pub(crate) mod prometheus;
pub(crate) mod proxy;
pub(crate) mod pulls;
pub(crate) mod requests;
pub(super) mod slis;
