//! Mounts that are attached after a container has been created: a volume at `/dev` and the mounts
//! below it, or a volume over a device.
//!
//! libcontainer creates links and devices in whatever is mounted at `/dev`, even the machine's own.
//! So it gets a temporary file system there, which the volume covers afterwards.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use oci_spec::runtime::{Mount as Wanted, Spec};

use super::{mount_points, namespace, shm};
use crate::Refusal;
use crate::supervisor::namespaces::users::Users;
use crate::sys::Mount;

pub(in crate::supervisor) const PLACE: &str = "/dev";
/// Devices that libcontainer creates in every container; it fails if something else is in their
/// place.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// True if a configuration has a bind mount there.
pub(super) fn is_wanted(spec: &Spec) -> bool {
    let mut mounts = spec.mounts().iter().flatten();
    mounts.any(|mount| is_bound(mount) && mount.destination() == Path::new(PLACE))
}

/// True if a bind mount is at or below it.
pub(super) fn concerns(mount: &Wanted) -> bool {
    is_bound(mount) && mount.destination().starts_with(PLACE)
}

/// True if a bind mount covers one of the default devices.
pub(super) fn is_device(mount: &Wanted) -> bool {
    let name = mount.destination().strip_prefix(PLACE);
    is_bound(mount) && name.is_ok_and(|name| DEVICES.iter().any(|device| name == Path::new(device)))
}

pub(in crate::supervisor) fn is_bound(mount: &Wanted) -> bool {
    mount.typ().as_deref() == Some("bind")
}

/// Detached mount and its destination.
struct Held {
    destination: PathBuf,
    mount: Mount,
    /// True if the pod did not specify it: its shared memory, and the file for termination
    /// messages.
    own: bool,
}

/// Mounts that wait until their container is created.
#[derive(Default)]
pub(in crate::supervisor) struct DelayedMounts {
    mounts: Vec<Held>,
    /// Mounts in the volume at `/dev` propagate to wherever the volume is mounted: on the machine
    /// they would stay.
    shared: bool,
}

impl DelayedMounts {
    /// Adds a mount, read-only or not as the configuration says.
    pub(in crate::supervisor) fn add(&mut self, wanted: &Wanted, mount: Mount) -> io::Result<()> {
        let says = |option: &str| wanted.options().iter().flatten().any(|own| own == option);
        mount_points::protect(&mount, wanted)?;
        self.shared |= wanted.destination() == Path::new(PLACE) && says("rshared");
        self.mounts.push(Held {
            destination: wanted.destination().clone(),
            mount,
            // Volumes are mounted recursively.
            own: !says("rbind"),
        });
        Ok(())
    }

    /// Adds the pod's shared memory, which is in the mount namespace.
    pub(super) fn add_memory(&mut self) -> io::Result<()> {
        let mount = Mount::copy(Path::new(namespace::MEMORY))?;
        mount.protect(libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC)?;
        self.mounts.push(Held {
            destination: PathBuf::from(shm::TARGET),
            mount,
            own: true,
        });
        Ok(())
    }

    /// True if a directory of the container is to stay hidden until they are mounted.
    pub(in crate::supervisor) fn hides(&self, directory: &Path) -> bool {
        !self.mounts.is_empty() && directory.starts_with(PLACE)
    }

    /// Attaches them for the container with this init process. This process is in the container's
    /// mount namespace afterwards.
    pub(in crate::supervisor) fn attach(mut self, pid: i32, users: Option<&Users>) -> Result<(), Refusal> {
        if self.mounts.is_empty() {
            return Ok(());
        }
        if self.shared {
            // The machine's own shared memory is visible; the file for termination messages is left
            // out.
            self.mounts
                .retain(|held| !held.own || held.destination == Path::new(PLACE));
        }
        let entered = File::open(format!("/proc/{pid}/ns/mnt"))
            .and_then(|namespace| Ok(setns(namespace, CloneFlags::CLONE_NEWNS)?));
        entered.map_err(|error| Refusal::failed("enter the container's mounts", &error))?;
        self.mounts.sort_by_key(|held| held.destination.components().count());
        for Held {
            destination,
            mount,
            own,
        } in self.mounts
        {
            let found = mount
                .is_directory()
                .and_then(|folder| place(&destination, folder, users));
            if let Err(error) = &found
                && error.kind() == io::ErrorKind::ReadOnlyFilesystem
                && own
            {
                // The pod did not specify it, but specified a read-only volume.
                continue;
            }
            let attached = found.and_then(|place| mount.attach_over(&place));
            attached.map_err(|error| Refusal::failed(format!("mount {}", destination.display()), &error))?;
        }
        Ok(())
    }
}

/// Opens or creates a mount point in the container. It is created as root of the pod.
fn place(destination: &Path, folder: bool, users: Option<&Users>) -> io::Result<OwnedFd> {
    let place = || find_or_make(destination, folder);
    users.map_or_else(place, |users| users.as_root(place))
}

/// Opens or creates a mount point; a link on the way may be an attack and is an error.
fn find_or_make(destination: &Path, folder: bool) -> io::Result<OwnedFd> {
    let path = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let mut here = open("/", path | OFlag::O_DIRECTORY, Mode::empty())?;
    let mut names = destination
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .peekable();
    while let Some(part) = names.next() {
        let Component::Normal(name) = part else {
            return Err(Errno::EINVAL.into());
        };
        let folder = folder || names.peek().is_some();
        let flags = path | OFlag::O_NOFOLLOW | if folder { OFlag::O_DIRECTORY } else { OFlag::empty() };
        let found = openat(&here, name, flags, Mode::empty());
        here = match found {
            Err(Errno::ENOENT) => {
                mount_points::make(&here, name, folder)?;
                openat(&here, name, flags, Mode::empty())?
            }
            found => found?,
        };
    }
    Ok(here)
}
