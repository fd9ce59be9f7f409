//! The daemons of this machine: processes or systemd units, and their readiness.

pub(super) mod process;
pub(super) mod readiness;
pub(super) mod served;
pub(crate) mod unit;
