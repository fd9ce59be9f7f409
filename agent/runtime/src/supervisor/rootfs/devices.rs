//! Devices of the machine in the `/dev` of a container: those that its configuration names, and all
//! where it may use all (`privileged`).

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType, LinuxNamespaceType, Spec};

use crate::Refusal;
use crate::supervisor::container::cgroup;

const PLACE: &str = "/dev";
/// Directories of the machine's `/dev` of which a container has its own, and those of other
/// container managers.
const OWN: [&str; 7] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-cgroup", ".udev"];
/// Terminal of a container, if it has one.
const CONSOLE: &str = "console";

/// Adds all devices to a configuration that allows every device; of those that it names, keeps the
/// ones outside volumes. Not with user namespaces of a pod: device nodes are useless
/// there.
pub(in crate::supervisor) fn add(
    spec: &mut Spec,
    namespaces: &[(LinuxNamespaceType, Option<PathBuf>)],
) -> Result<(), Refusal> {
    let shifted = namespaces.iter().any(|(kind, _)| *kind == LinuxNamespaceType::User);
    if shifted {
        return Ok(());
    }
    let every = cgroup::every_device(spec);
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut found = linux.devices().clone().unwrap_or_default();
    if every {
        let mut all = Vec::new();
        find(Path::new(PLACE), Path::new(PLACE), &mut all)
            .map_err(|error| Refusal::failed("list the machine's devices", &error))?;
        all.retain(|device| !found.iter().any(|own| own.path() == device.path()));
        found.append(&mut all);
    } else if found.is_empty() {
        return Ok(());
    }
    found.retain(|device| !is_covered(spec, device.path()));
    linux.set_devices(Some(found));
    spec.set_linux(Some(linux));
    Ok(())
}

/// True if a volume of the pod covers the device: nothing is created in volumes.
fn is_covered(spec: &Spec, device: &Path) -> bool {
    let own = |mount: &&oci_spec::runtime::Mount| mount.typ().as_deref() == Some("bind");
    let mut own = spec.mounts().iter().flatten().filter(own);
    own.any(|mount| device.starts_with(mount.destination()))
}

/// Collects the devices in a directory, by their names below `shown`, sorted.
fn find(folder: &Path, shown: &Path, found: &mut Vec<LinuxDevice>) -> io::Result<()> {
    // A file system that another program mounted there may not answer: skip its devices rather than
    // fail the container.
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (name, path) = (entry.file_name(), entry.path());
        // Of the entry itself, without following links.
        let Ok(metadata) = entry.metadata() else { continue };
        let kind = metadata.file_type();
        if kind.is_dir() {
            if !OWN.iter().any(|own| name == **own) {
                find(&path, &shown.join(&name), found)?;
            }
        } else if name != CONSOLE && (kind.is_block_device() || kind.is_char_device()) {
            found.push(device(shown.join(&name), &metadata)?);
        }
    }
    Ok(())
}

fn device(path: PathBuf, metadata: &fs::Metadata) -> io::Result<LinuxDevice> {
    let kind = if metadata.file_type().is_block_device() {
        LinuxDeviceType::B
    } else {
        LinuxDeviceType::C
    };
    let number = |number: u64| i64::try_from(number).map_err(io::Error::other);
    LinuxDeviceBuilder::default()
        .path(path)
        .typ(kind)
        .major(number(major(metadata.rdev()))?)
        .minor(number(minor(metadata.rdev()))?)
        .file_mode(metadata.mode() & 0o7777)
        .uid(metadata.uid())
        .gid(metadata.gid())
        .build()
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use nix::unistd::mkfifo;

    use super::{add, find};

    #[test]
    fn attack_only_the_machines_devices_are_found_and_no_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mode = Mode::from_bits_truncate(0o640);
        for folder in ["pts", "shm", "mqueue", "bus/usb", "bus/shm"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for name in [
            "kmsg",
            "console",
            "pts/0",
            "shm/x",
            "mqueue/x",
            "bus/console",
            "bus/shm/x",
        ] {
            mknod(&root.join(name), SFlag::S_IFCHR, mode, makedev(1, 11)).unwrap();
        }
        mknod(&root.join("bus/usb/disk"), SFlag::S_IFBLK, mode, makedev(259, 70_000)).unwrap();
        mkfifo(&root.join("pipe"), mode).unwrap();
        fs::write(root.join("file"), "").unwrap();
        symlink("/dev/null", root.join("link")).unwrap();
        symlink("/dev", root.join("folder")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        let mut found = Vec::new();
        find(root, Path::new("/dev"), &mut found).unwrap();
        let found: Vec<String> = found
            .iter()
            .map(|device| {
                let (path, kind) = (device.path().display(), device.typ());
                let (kind, mode) = (kind.as_str(), device.file_mode().unwrap_or_default());
                format!("{path} {kind} {}:{} {mode:o}", device.major(), device.minor())
            })
            .collect();
        assert_eq!(found, ["/dev/bus/usb/disk b 259:70000 640", "/dev/kmsg c 1:11 640"]);
        let mut none = Vec::new();
        find(&root.join("gone"), Path::new("/dev"), &mut none).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn only_who_may_use_every_device_is_told_and_volumes_stay_as_they_are() {
        let listed = |allow: bool, destination: &str| {
            let spec = serde_json::json!({
                "ociVersion": "1.0.2",
                "mounts": [
                    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                    {"destination": destination, "type": "bind", "source": "/x"},
                ],
                "linux": {"resources": {"devices": [{"allow": allow, "access": "rwm"}]}},
            });
            let mut spec = serde_json::from_value(spec).unwrap();
            add(&mut spec, &[]).unwrap();
            let linux = spec.linux().clone().unwrap();
            let devices = linux.devices().clone().unwrap_or_default();
            let has = |name: &str| devices.iter().any(|device| device.path() == Path::new(name));
            (has("/dev/null"), has("/dev/zero"))
        };
        assert_eq!(listed(true, "/dev/termination-log"), (true, true));
        assert_eq!(listed(true, "/dev//null/"), (false, true));
        assert_eq!(listed(true, "/dev"), (false, false));
        assert_eq!(listed(false, "/v"), (false, false));
    }
}
