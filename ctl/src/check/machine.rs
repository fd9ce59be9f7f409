//! Checks of the machine besides the kernel's features.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::SockaddrStorage;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, SMB_SUPER_MAGIC, TMPFS_MAGIC, statfs,
};
use nix::sys::statvfs::statvfs;
use time::OffsetDateTime;

use super::{Finding, Level, existing, number, text};

/// File systems that overlayfs rejects for the upper layer. (linux/magic.h: 9p, FAT)
const NO_LAYERS: [FsType; 5] = [
    OVERLAYFS_SUPER_MAGIC,
    NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC,
    FsType(0x0102_1997),
    FsType(0x4d44),
];
/// Free space that is too small for most images, and for the database with its reserve.
const LITTLE: u64 = 2 << 30;
const NONE: u64 = 32 << 20;
/// Descriptors that a daemon of a small cluster may need.
const DESCRIPTORS: u64 = 4096;

/// Checks the clock: a machine without a battery-backed clock starts in the past, where no
/// certificate is valid.
pub(super) fn clock_is_set() -> Finding {
    let (name, now) = ("clock", OffsetDateTime::now_utc());
    if now.year() >= 2026 {
        return Finding::ok(name, format!("{} UTC", now.date()));
    }
    let mend = "let chrony or systemd-timesyncd set it";
    Finding::bad(Level::Fail, name, format!("it is {} by it", now.date()), mend)
}

pub(super) fn takes_layers(state_dir: &Path) -> Finding {
    let (name, place) = ("file system", existing(state_dir));
    let kind = match statfs(place) {
        Ok(found) => found.filesystem_type(),
        Err(error) => return Finding::bad(Level::Warn, name, format!("{}: {error}", place.display()), "see to it"),
    };
    if NO_LAYERS.contains(&kind) {
        let found = format!("{} is on one that overlayfs takes no layers from", place.display());
        let mend = "give a directory on ext4, xfs or btrfs by --state-dir";
        return Finding::bad(Level::Fail, name, found, mend);
    }
    let known = [
        (BTRFS_SUPER_MAGIC, "btrfs"),
        (FsType(0x5846_5342), "xfs"),
        (TMPFS_MAGIC, "tmpfs"),
        (FsType(0xef53), "ext4"),
    ];
    let word = known
        .iter()
        .find(|(magic, _)| *magic == kind)
        .map_or("one that may do", |(_, word)| word);
    if kind == TMPFS_MAGIC {
        let mend = "images and the database are gone when the machine stops, and take memory till then";
        return Finding::bad(Level::Warn, name, format!("{} is in memory", place.display()), mend);
    }
    Finding::ok(name, format!("{} is on {word}", place.display()))
}

pub(super) fn disk(state_dir: &Path) -> Finding {
    let (name, place) = ("disk", existing(state_dir));
    let found = match statvfs(place) {
        Ok(found) => found,
        Err(error) => return Finding::bad(Level::Warn, name, format!("{}: {error}", place.display()), "see to it"),
    };
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    let size = found.blocks().saturating_mul(found.fragment_size());
    let (files, spare) = (found.files(), found.files_available());
    let told = format!("{} MiB free of {} at {}", free >> 20, size >> 20, place.display());
    if free < NONE {
        let mend = "make room, or give another directory by --state-dir";
        return Finding::bad(Level::Fail, name, told, mend);
    }
    if free < size / 20 || (files > 0 && spare < files / 20) {
        let mend = "make room: below 5 % the node evicts its pods";
        return Finding::bad(Level::Warn, name, format!("{told}, {spare} files free"), mend);
    }
    if free < LITTLE {
        return Finding::bad(Level::Warn, name, told, "images need more");
    }
    Finding::ok(name, told)
}

/// Checks for a program that the agent runs.
pub(super) fn program(program: &str, package: &str) -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program =
        |file: &Path| fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut files = places.map(|place| place.join(program));
    match files.find(|file| is_program(file)) {
        Some(file) => Finding::ok("nft", file.display().to_string()),
        None => Finding::bad(
            Level::Fail,
            "nft",
            format!("there is no {program}"),
            format!("install the package {package}"),
        ),
    }
}

/// Checks for the module that CNI plugins with a bridge need for Services and `NetworkPolicies`.
pub(super) fn bridge_filter() -> Finding {
    let name = "br_netfilter";
    match number("/proc/sys/net/bridge/bridge-nf-call-iptables") {
        Some(1) => Finding::ok(name, "bridged packets pass the firewall"),
        Some(_) => {
            let mend = "plugins that use a bridge need `sysctl -w net.bridge.bridge-nf-call-iptables=1`";
            Finding::bad(Level::Warn, name, "bridged packets do not pass the firewall", mend)
        }
        None => {
            let mend = "plugins that use a bridge need `modprobe br_netfilter`";
            Finding::bad(Level::Warn, name, "it is not loaded", mend)
        }
    }
}

/// Checks for networks of the machine in the usual ranges, whose hosts pods and Services hide.
pub(super) fn ranges() -> Finding {
    let address = |of: Option<SockaddrStorage>| Some(of?.as_sockaddr_in()?.ip());
    let held = getifaddrs().into_iter().flatten();
    let held = held.filter(|held| !held.interface_name.starts_with("skiff"));
    overlapping(held.filter_map(|held| Some((address(held.address)?, address(held.netmask)?, held.interface_name))))
}

fn overlapping(networks: impl Iterator<Item = (Ipv4Addr, Ipv4Addr, String)>) -> Finding {
    const USUAL: [([u8; 4], [u8; 4], &str); 2] = [
        (
            [10, 244, 0, 0],
            [255, 255, 0, 0],
            "pods get addresses there; `skiff up --pod-cidr`, or SKIFF_CLUSTER_CIDR of the unit, gives other ones",
        ),
        (
            [10, 96, 0, 0],
            [255, 240, 0, 0],
            "Services get addresses there; SKIFF_SERVICE_CIDR of the control plane gives other ones",
        ),
    ];
    for (address, mask, interface) in networks {
        for (range, length, mend) in USUAL {
            let common = mask & Ipv4Addr::from(length);
            if address & common == Ipv4Addr::from(range) & common {
                let found = format!("{interface} has {address}/{}", mask.to_bits().count_ones());
                return Finding::bad(Level::Warn, "ranges", found, mend);
            }
        }
    }
    Finding::ok("ranges", "no network of this machine is in those of pods and Services")
}

pub(super) fn forwarding() -> Finding {
    let (name, file) = ("forwarding", "/proc/sys/net/ipv4/ip_forward");
    if number(file) == Some(1) {
        return Finding::ok(name, "on");
    }
    match fs::File::options().write(true).open(file) {
        Ok(_) => Finding::ok(name, "off; the agent turns it on"),
        Err(error) => {
            let mend = "`sysctl -w net.ipv4.ip_forward=1` before the agent starts";
            Finding::bad(
                Level::Fail,
                name,
                format!("off, and cannot be turned on ({error})"),
                mend,
            )
        }
    }
}

pub(super) fn swap() -> Finding {
    let name = "swap";
    if text("/proc/swaps").unwrap_or_default().lines().count() < 2 {
        return Finding::ok(name, "off");
    }
    let mend = "pods without a limit of memory may be swapped out; `swapoff -a` and /etc/fstab turn it off";
    Finding::bad(Level::Warn, name, "on", mend)
}

pub(super) fn inotify() -> Finding {
    let name = "inotify";
    let of = |what: &str| number(&format!("/proc/sys/fs/inotify/max_user_{what}")).unwrap_or_default();
    let (instances, watches) = (of("instances"), of("watches"));
    let told = format!("{instances} instances, {watches} watches");
    if instances >= 128 && watches >= 8192 {
        return Finding::ok(name, told);
    }
    let mend =
        "`sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288`: logs are followed by them";
    Finding::bad(Level::Warn, name, told, mend)
}

pub(super) fn descriptors() -> Finding {
    let name = "nofile";
    let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
    if hard >= DESCRIPTORS {
        return Finding::ok(name, format!("at most {hard}"));
    }
    let mend = "raise the hard limit of open files (`ulimit -Hn`, /etc/security/limits.conf)";
    Finding::bad(Level::Warn, name, format!("at most {hard}"), mend)
}

/// Checks for other programs that create pods or route packets.
pub(super) fn neighbors() -> Vec<Finding> {
    const KNOWN: [(&str, &str); 6] = [
        (
            "kubelet",
            "both want port 10250 (--agent-port), and its kube-proxy leads Services, too",
        ),
        (
            "k3s-server",
            "both want ports 6443 and 10250, and its flannel the ranges of 10.42.0.0/16",
        ),
        ("k3s-agent", "both want port 10250 (--agent-port)"),
        ("kubelite", "microk8s wants port 10250, too (--agent-port)"),
        (
            "firewalld",
            "it drops what comes to nodes and pods: open 6443/tcp, 10250/tcp and 4789/udp, and trust the pods' range \
             (`firewall-cmd --zone=trusted --add-source=10.244.0.0/16`)",
        ),
        (
            "dockerd",
            "it drops what is forwarded; the agent lets pods through, and looks every 30 seconds",
        ),
    ];
    let names = names();
    let runs = KNOWN
        .iter()
        .filter(|(name, _)| names.iter().any(|running| running == name));
    let found = runs.map(|(name, mend)| Finding::bad(Level::Warn, "neighbors", format!("{name} runs here"), *mend));
    let found: Vec<Finding> = found.collect();
    if !found.is_empty() {
        return found;
    }
    // A container engine alone can run side by side.
    let engine = names.iter().any(|running| running == "containerd");
    let told = if engine {
        "containerd runs here; --runtime containerd uses it"
    } else {
        "no other engine runs here"
    };
    vec![Finding::ok("neighbors", told)]
}

/// Returns the names of the processes in this PID namespace.
fn names() -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = processes.filter(is_process);
    let names = processes.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Level, overlapping};

    #[test]
    fn networks_that_pods_would_hide_are_told() {
        for (address, mask, level) in [
            ("10.244.3.7", "255.255.255.0", Level::Warn),
            ("10.1.2.3", "255.0.0.0", Level::Warn),
            ("10.111.0.1", "255.255.0.0", Level::Warn),
            ("10.112.0.1", "255.255.0.0", Level::Ok),
            ("192.168.56.10", "255.255.255.0", Level::Ok),
            ("127.0.0.1", "255.0.0.0", Level::Ok),
        ] {
            let network = (address.parse().unwrap(), mask.parse().unwrap(), "eth0".to_owned());
            let found = overlapping([network].into_iter());
            assert_eq!(found.level, level, "{}", found.line());
        }
    }
}
