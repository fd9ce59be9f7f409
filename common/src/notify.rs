//! Notifications to the service manager, as in `sd_notify(3)`. Without a service manager they are
//! dropped.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::warn;

/// Notifies that the daemon is ready.
pub fn ready() {
    send("READY=1");
}

/// Notifies that the process is stopping.
pub fn stopping() {
    send("STOPPING=1");
}

/// Notifies the watchdog, twice in each interval of the unit's `WatchdogSec=`: a process whose
/// executor hangs sends nothing and is restarted.
pub async fn watchdog() -> Infallible {
    let own = std::process::id().to_string();
    let is_ours = std::env::var_os("WATCHDOG_PID").is_none_or(|pid| pid == *own);
    let interval = std::env::var("WATCHDOG_USEC").ok().filter(|_| is_ours);
    let interval = interval
        .and_then(|interval| interval.parse().ok())
        .filter(|interval| *interval > 0);
    let Some(interval) = interval.map(Duration::from_micros) else {
        return std::future::pending().await;
    };
    loop {
        send("WATCHDOG=1");
        tokio::time::sleep(interval / 2).await;
    }
}

fn send(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return;
    };
    if let Err(error) = send_to(&path, state) {
        warn!(%error, state, "tell the service manager");
    }
}

fn send_to(path: &OsString, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(path.as_bytes()))?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_it() {
        let name = format!("skiff-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send_to(&OsString::from(format!("@{name}")), "READY=1").unwrap();
        let mut heard = [0; 32];
        let length = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");
    }
}
