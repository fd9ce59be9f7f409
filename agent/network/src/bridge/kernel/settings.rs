//! Sysctls of the network namespace that the calling thread is in.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::nft::has_ipv6;
use crate::{Error, Ranges};

const V4: &str = "/proc/sys/net/ipv4";
const V6: &str = "/proc/sys/net/ipv6/conf";

/// Enables forwarding in this network namespace for the ranges' families. It stays enabled: another
/// network may depend on it.
pub(in crate::bridge) fn forward(ranges: Ranges) -> Result<(), Error> {
    if ranges.of_family(false).is_some() {
        set(&Path::new(V4).join("ip_forward"), "1")?;
    }
    let Some(range) = ranges.of_family(true) else {
        return Ok(());
    };
    if !has_ipv6() {
        return Err(Error::NoIpv6(range));
    }
    let all = Path::new(V6).join("all/forwarding");
    if read(&all)? != "1" {
        keep_advertised_routes()?;
        set(&all, "1")?;
    }
    Ok(())
}

/// Forwarding disables router advertisements, and the kernel deletes the default routes learned
/// from them: the machine would lose its network. Interfaces that accept them now are set to keep
/// accepting (`accept_ra=2`).
fn keep_advertised_routes() -> Result<(), Error> {
    let folder = Path::new(V6);
    let entries = std::fs::read_dir(folder).map_err(|source| Error::io("read", folder, source))?;
    for entry in entries {
        let interface = entry.map_err(|source| Error::io("read", folder, source))?.path();
        let listens = interface.join("accept_ra");
        // `all` and `default` are not interfaces.
        let real = !["all", "default"].iter().any(|name| interface.ends_with(name));
        if real && read(&listens)? == "1" && read(&interface.join("forwarding"))? == "0" {
            set(&listens, "2")?;
        }
    }
    Ok(())
}

/// Sysctls of the bridge. Router advertisements of pods are ignored, so that no pod can set a
/// route. Duplicate address detection is disabled, since the bridge's addresses are unique.
pub(in crate::bridge) fn of_bridge(bridge: &str, v6: bool) -> Result<(), Error> {
    of_interface(bridge, v6)
}

/// Sysctls of a pod's interface, inside its namespace.
pub(in crate::bridge) fn of_joined(interface: &str, v6: bool) -> Result<(), Error> {
    ignore_redirects(interface)?;
    of_interface(interface, v6)
}

/// Sysctls of all interfaces that a new namespace will get.
pub(in crate::bridge) fn of_new_namespace(v6: bool) -> Result<(), Error> {
    ignore_redirects("default")?;
    of_interface("default", v6)?;
    if v6 {
        set(&Path::new(V6).join("lo/disable_ipv6"), "0")?;
    }
    Ok(())
}

/// Keeps a pod on its way through the gateway, which tells it that other pods are on its link.
/// IPv6 needs no setting: redirects come from another address than that of the pod's route.
fn ignore_redirects(interface: &str) -> Result<(), Error> {
    // Either of the two is enough to accept them.
    ["all", interface].iter().try_for_each(|name| {
        let path = Path::new(V4).join("conf").join(name).join("accept_redirects");
        set(&path, "0")
    })
}

fn of_interface(name: &str, v6: bool) -> Result<(), Error> {
    let folder = Path::new(V6).join(name);
    for (setting, value) in [("accept_ra", "0"), ("accept_dad", "0"), ("disable_ipv6", "0")] {
        let path = folder.join(setting);
        let done = if v6 || setting == "accept_ra" {
            set(&path, value)
        } else {
            Ok(())
        };
        match done {
            // A kernel without IPv6, or an interface whose MTU is too small for it.
            Err(Error::Io { source, .. }) if !v6 && source.kind() == ErrorKind::NotFound => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}

/// Sets `route_localnet`: whether packets from the node's loopback to a host port may be routed to
/// the bridge. By itself this also opens the loopback to all pods on the bridge. Disabling succeeds
/// if there is no bridge.
pub(in crate::bridge) fn reach_loopback(bridge: &str, may: bool) -> Result<(), Error> {
    let path = PathBuf::from(V4).join("conf").join(bridge).join("route_localnet");
    match set(&path, if may { "1" } else { "0" }) {
        Err(Error::Io { source, .. }) if !may && source.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::io("read", path, source))?;
    Ok(text.trim().to_owned())
}

/// Skips a sysctl that has the value already: on a read-only `/proc/sys` it may be right.
fn set(path: &Path, value: &str) -> Result<(), Error> {
    if read(path)? == value {
        return Ok(());
    }
    std::fs::write(path, value).map_err(|source| Error::io("write", path, source))
}
