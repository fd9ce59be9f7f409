//! A container: root file system, creation and start.
//!
//! * [`creation`]: containerd's record and a created task
//! * [`root`], [`ahead`]: snapshots for root file systems, and those that are prepared ahead
//! * [`images`]: images as volumes
//! * [`handlers`]: OCI runtimes
//! * [`starting`], [`exec_fifo`]: start of the created task
//! * [`sysfs`]: mount of `/sys`

pub(super) mod ahead;
pub(super) mod creation;
pub(super) mod exec_fifo;
pub(super) mod handlers;
pub(super) mod images;
pub(super) mod root;
pub(super) mod starting;
pub(super) mod sysfs;
