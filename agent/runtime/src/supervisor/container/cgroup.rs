//! Cgroups of a container: its membership, its view of them, and libcontainer's.
//!
//! libcontainer reads the whole mount table once for each hierarchy when it enters a group, and
//! again when it mounts one. So groups, limits and devices are set up before, and libcontainer
//! finds a single hierarchy in which it has nothing to do.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;
use oci_spec::runtime::{Mount as Wanted, Spec};

use crate::cgroup::Cgroups;
use crate::cgroup::devices::Rule;
use crate::sys::{FileSystem, Mount};

/// Mount point of cgroups, where programs and libcontainer look for them.
const PLACE: &str = "/sys/fs/cgroup";
/// The container's view of its cgroups.
pub(in crate::supervisor) const VIEW: &str = "/view";
/// File in every mount namespace that covers files of the hierarchy's root.
const DECOY: &str = "/decoy";

/// True if a configuration allows every device.
pub(in crate::supervisor) fn every_device(spec: &Spec) -> bool {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let rules = resources.and_then(|resources| resources.devices().as_ref());
    let all = |rule: &oci_spec::runtime::LinuxDeviceCgroup| rule.allow() && rule.major().is_none();
    rules.is_some_and(|rules| rules.iter().any(all))
}

/// Rules for the devices that a configuration allows besides those of every container; `None` if it
/// allows every device.
pub(super) fn device_rules(spec: &Spec) -> Option<Vec<Rule>> {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let rules = resources.and_then(|resources| resources.devices().as_ref());
    (!every_device(spec)).then(|| rules.into_iter().flatten().filter_map(Rule::of).collect())
}

/// Redirects the cgroup mount of a configuration to the container's own groups in the mount
/// namespace; returns the access that it grants, if there is one.
pub(in crate::supervisor) fn show(spec: &mut Spec) -> Option<Access> {
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let wanted = mounts.iter().find(|mount| is_view(mount))?;
    let writable = wanted.options().iter().flatten().any(|option| option == "rw");
    for mount in mounts.iter_mut().filter(|mount| is_view(mount)) {
        bind(mount, PathBuf::from(VIEW));
    }
    spec.set_mounts(Some(mounts));
    Some(if writable { Access::Write } else { Access::Read })
}

/// Access of a container to its own cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::supervisor) enum Access {
    Read,
    Write,
}

/// View of the container's own cgroups.
pub(super) enum View {
    /// v2 only.
    One(Mount),
    /// Each hierarchy by the name of its directory, and the attributes of their parent mount.
    Each(Vec<(OsString, Mount)>, u64),
}

impl View {
    /// Must be called in the machine's mount namespace.
    pub(in crate::supervisor) fn take(cgroups: &Cgroups, leaf: &Path, access: Access) -> io::Result<Self> {
        let protection = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        let protection = match access {
            Access::Write => protection,
            Access::Read => protection | libc::MOUNT_ATTR_RDONLY,
        };
        let copy = |group: &Path| {
            let copy = Mount::private(group)?;
            copy.protect(protection)?;
            Ok::<_, io::Error>(copy)
        };
        if let Some(mount) = cgroups.v2().filter(|_| cgroups.unified()) {
            return copy(&mount.join(leaf)).map(Self::One);
        }
        let named = cgroups
            .v1()
            .filter_map(|mount| Some((mount, mount.file_name()?.to_owned())));
        let all = named.map(|(mount, name)| Ok((name, copy(&mount.join(leaf))?)));
        Ok(Self::Each(all.collect::<io::Result<_>>()?, protection))
    }

    /// Mounts it in the mount namespace, in the machine's layout.
    pub(in crate::supervisor) fn put(self) -> io::Result<()> {
        let view = Path::new(VIEW);
        match self {
            Self::One(group) => group.attach(view)?,
            Self::Each(all, protection) => {
                let folder = FileSystem::open("tmpfs")?;
                folder.set("source", b"cgroup")?;
                folder.set("mode", b"755")?;
                let folder = folder.mount(0)?;
                folder.attach(view)?;
                for (name, group) in all {
                    let place = view.join(&name);
                    fs::create_dir(&place)?;
                    group.attach(&place)?;
                    // `cpu,cpuacct` under each of its names.
                    let parts = name.to_str().unwrap_or_default().split(',');
                    for part in parts.filter(|part| Path::new(part) != Path::new(&name)) {
                        std::os::unix::fs::symlink(&name, view.join(part))?;
                    }
                }
                folder.protect(protection)?;
            }
        }
        Ok(())
    }
}

fn is_view(mount: &Wanted) -> bool {
    mount.typ().as_deref() == Some("cgroup")
}

fn bind(mount: &mut Wanted, source: PathBuf) {
    let options = ["rbind", "rprivate", "nosuid", "noexec", "nodev"];
    let access = mount.options().iter().flatten().find(|option| *option == "ro").cloned();
    let options = options.map(str::to_owned).into_iter().chain(access).collect();
    mount
        .set_typ(Some("bind".to_owned()))
        .set_source(Some(source))
        .set_options(Some(options));
}

/// The only hierarchy that libcontainer finds: v2, with the container in its root. libcontainer
/// moves its process there by writing a PID to a file of ours: the kernel's would wait for an RCU
/// grace period.
pub(in crate::supervisor) struct Root(Mount);

impl Root {
    pub(in crate::supervisor) fn take(cgroups: &Cgroups) -> io::Result<Self> {
        match cgroups.v2() {
            Some(mount) => Mount::private(mount),
            // It is not mounted yet, so this changes no options of a mount.
            None => FileSystem::open("cgroup2")?.mount(0),
        }
        .map(Self)
    }

    pub(in crate::supervisor) fn put(&self) -> io::Result<()> {
        let place = Path::new(PLACE);
        self.0.attach(place)?;
        Mount::copy(Path::new(DECOY))?.attach(&place.join("cgroup.procs"))?;
        // Non-root groups have this file, and the root too if this machine is itself a container.
        let killer = place.join("cgroup.kill");
        if killer.exists() {
            let decoy = Mount::copy(Path::new(DECOY))?;
            decoy.protect(libc::MOUNT_ATTR_RDONLY)?;
            decoy.attach(&killer)?;
        }
        Ok(())
    }
}

/// Creates the file that covers files of the hierarchy's root in every mount namespace.
///
/// Its text is not UTF-8, and as `cgroup.kill` it is read-only: so libcontainer's cleanup gives up
/// at once. The supervisor removes the groups.
pub(in crate::supervisor) fn write_decoy() -> io::Result<()> {
    fs::write(DECOY, [0xff; 64])
}
