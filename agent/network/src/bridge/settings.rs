//! The kernel's settings of the network namespace that the calling thread is in.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Error, Ranges};

const V4: &str = "/proc/sys/net/ipv4";
const V6: &str = "/proc/sys/net/ipv6/conf";

/// Lets this network namespace forward packets of the ranges' families. It stays on: another network of the machine may rely
/// on it by now.
pub(super) fn forward(ranges: Ranges) -> Result<(), Error> {
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

/// Whether the kernel knows of addresses of version 6.
pub(crate) fn has_ipv6() -> bool {
    Path::new(V6).exists()
}

/// A machine that forwards stops to listen to routers, and the kernel removes the default routes that came from them with the
/// switch: the machine would be off the net. Interfaces that listen now are told to go on with it.
fn keep_advertised_routes() -> Result<(), Error> {
    let folder = Path::new(V6);
    let entries = std::fs::read_dir(folder).map_err(|source| Error::io("read", folder, source))?;
    for entry in entries {
        let interface = entry.map_err(|source| Error::io("read", folder, source))?.path();
        let listens = interface.join("accept_ra");
        // What is for all and for new ones says nothing of an interface that is there.
        let real = !["all", "default"].iter().any(|name| interface.ends_with(name));
        if real && read(&listens)? == "1" && read(&interface.join("forwarding"))? == "0" {
            set(&listens, "2")?;
        }
    }
    Ok(())
}

/// What holds for the bridge. A pod may not give the machine a route: it does not listen to routers on this interface. Nobody
/// else has the bridge's addresses, so they serve at once.
pub(super) fn of_bridge(bridge: &str, v6: bool) -> Result<(), Error> {
    of_interface(bridge, v6)
}

/// What holds for the interface of a pod, which is in the namespace already.
pub(super) fn of_joined(interface: &str, v6: bool) -> Result<(), Error> {
    of_interface(interface, v6)
}

/// What holds for all interfaces that a new namespace will get.
pub(super) fn of_new_namespace(v6: bool) -> Result<(), Error> {
    of_interface("default", v6)?;
    if v6 {
        set(&Path::new(V6).join("lo/disable_ipv6"), "0")?;
    }
    Ok(())
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

/// Whether what the node sends to a port of its own loopback may leave for the bridge. By itself that opens the loopback to all
/// who are on the bridge, too. A bridge that is not there has no way to close.
pub(super) fn reach_loopback(bridge: &str, may: bool) -> Result<(), Error> {
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

/// Says what is so already to nobody: where settings cannot be written, they may be right.
fn set(path: &Path, value: &str) -> Result<(), Error> {
    if read(path)? == value {
        return Ok(());
    }
    std::fs::write(path, value).map_err(|source| Error::io("write", path, source))
}
