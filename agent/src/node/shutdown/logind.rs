//! Shutdown signals and inhibitor locks of systemd-logind.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::bus::{Bus, Kind, Target};

const MANAGER: Target<'_> = Target {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const SIGNAL: &str = "PrepareForShutdown";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// Connection to logind.
pub(super) struct Logind(Bus);

impl Logind {
    /// Connects and subscribes to signals.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let mut bus = Bus::connect(socket)?;
        let Target {
            service,
            path,
            interface,
        } = MANAGER;
        bus.listen(&format!(
            "type='signal',sender='{service}',path='{path}',interface='{interface}',member='{SIGNAL}'"
        ))?;
        Ok(Self(bus))
    }

    /// Returns the maximum delay of an inhibitor lock (`InhibitDelayMaxUSec`).
    pub(super) fn patience(&mut self) -> io::Result<Duration> {
        let target = Target {
            interface: PROPERTIES,
            ..MANAGER
        };
        let answer = self
            .0
            .call(target, "Get", &[MANAGER.interface, "InhibitDelayMaxUSec"])?;
        answer.variant_number().map(Duration::from_micros)
    }

    /// Takes an inhibitor lock, which is held until the returned descriptor is closed.
    pub(super) fn inhibit(&mut self) -> io::Result<OwnedFd> {
        let why = "pods need time to end";
        let answer = self
            .0
            .call(MANAGER, "Inhibit", &["shutdown", "skiff-agent", why, "delay"])?;
        let lock = answer.descriptors.into_iter().next();
        lock.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor came with the lock"))
    }

    /// Waits for the next `PrepareForShutdown` signal and returns its argument.
    pub(super) fn next(&mut self) -> io::Result<bool> {
        loop {
            let message = self.0.receive()?;
            let told = (
                message.path.as_str(),
                message.interface.as_str(),
                message.member.as_str(),
            );
            if message.kind == Kind::Signal && told == (MANAGER.path, MANAGER.interface, SIGNAL) {
                return message.boolean();
            }
        }
    }
}

/// True if systemd is shutting down the machine.
pub(super) fn is_stopping(socket: &Path) -> io::Result<bool> {
    let target = Target {
        service: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: PROPERTIES,
    };
    let answer = Bus::connect(socket)?.call(target, "Get", &["org.freedesktop.systemd1.Manager", "SystemState"])?;
    Ok(answer.variant_string()? == "stopping")
}
