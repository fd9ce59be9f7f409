//! Exits of containers: events of containerd, watches of processes, and exits while containerd is down.

pub(super) mod events;
pub(super) mod kept;
pub(super) mod watch;

use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for the exit of a process.
#[expect(unsafe_code, reason = "tokio wants to be promised that the descriptor stays open")]
pub(in crate::containerd) async fn gone(process: OwnedFd) {
    // SAFETY: an owned descriptor is closed when it is dropped, with or after its registration.
    let Ok(process) = (unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }) else {
        return;
    };
    drop(process.readable().await);
}
