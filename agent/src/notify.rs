//! Tells the service manager that the agent is ready.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `READY=1` to the socket that `NOTIFY_SOCKET` names, if there is one.
pub fn ready() {
    let Some(target) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(target.as_encoded_bytes()) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

fn send(target: &[u8]) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let address = match target.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(target))?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}
