//! Resource usage and metrics.
//!
//! * [`own`], [`cadvisor`], [`probes`], [`measures`], [`slis`]: the endpoints
//! * [`disks`], [`disk_usage`], [`network`]: what they measure
//! * [`prometheus`]: the text format

pub(super) mod cadvisor;
pub(super) mod disk_usage;
mod disks;
pub(super) mod measures;
mod network;
pub(super) mod own;
pub(super) mod probes;
mod prometheus;
pub(super) mod slis;
