//! Exits of containers: events of containerd, watches of processes, and exits while containerd is down.

pub(super) mod events;
pub(super) mod kept;
pub(super) mod watch;
