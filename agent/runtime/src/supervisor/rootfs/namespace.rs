//! Mount namespace in which containers are created: it holds only what that needs.
//!
//! A copy of the machine's own would cost more time and memory with every pod of the node, and is
//! made more than once for a container. So there is one namespace with the directories below and
//! the mounts that libcontainer reads, and a creation starts from a copy of that. Further mounts of
//! the machine are opened before, or from a visit to the machine's namespace, and stay detached.
//!
//! libcontainer sees the machine's `/proc`, `/sys`, `/dev` and the v2 cgroup hierarchy as they were
//! when the agent started; these mounts are permanent.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, pivot_root};

use crate::cgroup::Cgroups;
use crate::supervisor::container::cgroup;
use crate::sys::{FileSystem, Mount};

/// Directory of the container.
pub(in crate::supervisor) const HOME: &str = "/container";
/// Shared memory of the pod.
pub(in crate::supervisor) const MEMORY: &str = "/memory";
/// State directory of libcontainer.
pub(in crate::supervisor) const STATE: &str = "/state";
/// Directories by number: layers and sources.
const FOLDERS: &str = "/folders";
/// Files by number: sources.
const FILES: &str = "/files";
/// Mounts of the machine that libcontainer reads, without those below them.
const MACHINE: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Mount namespace that is copied for creations, and the machine's to return to.
pub(in crate::supervisor) struct MountNamespace {
    namespace: OwnedFd,
    machine: OwnedFd,
}

impl MountNamespace {
    /// Created once, in the zygote, which stays in the machine's namespace.
    pub(in crate::supervisor) fn make(cgroups: &Cgroups) -> io::Result<Self> {
        let parts = MACHINE.iter().map(|part| Ok((part, Mount::private(Path::new(part))?)));
        let parts = parts.collect::<io::Result<Vec<_>>>()?;
        let groups = cgroup::Root::take(cgroups)?;
        let (own, machine) = (own_namespaces()?, namespace(&own_namespaces()?)?);
        let root = FileSystem::open("tmpfs")?;
        root.set("source", b"tmpfs")?;
        root.set("mode", b"0755")?;
        let root = root.mount(0)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let made = namespace(&own).and_then(|namespace| {
            become_root(&root, Path::new("/proc"))?;
            for folder in MACHINE
                .iter()
                .chain(&[HOME, cgroup::VIEW, MEMORY, STATE, FOLDERS, FILES])
            {
                fs::create_dir(folder)?;
                // Root of a container traverses them, whatever umask the agent was started with.
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
            for (part, mount) in &parts {
                mount.attach(Path::new(part))?;
            }
            cgroup::write_decoy()?;
            groups.put()?;
            Ok(namespace)
        });
        setns(&machine, CloneFlags::CLONE_NEWNS)?;
        Ok(Self {
            namespace: made?,
            machine,
        })
    }

    /// Moves this process into a copy. Its working directory becomes the root.
    pub(in crate::supervisor) fn enter(&self) -> io::Result<()> {
        enter_copy(&self.namespace)
    }

    /// Makes a copy with a mount at [`MEMORY`]; this process returns to the machine's mount
    /// namespace.
    pub(super) fn with_memory(&self, memory: &Mount) -> io::Result<OwnedFd> {
        let made = self.enter().and_then(|()| {
            memory.attach(Path::new(MEMORY))?;
            File::open("/proc/self/ns/mnt").map(OwnedFd::from)
        });
        self.leave()?;
        made
    }

    /// Runs work in the machine's mount namespace, and returns to the copy of this process, which
    /// has `/proc`.
    pub(in crate::supervisor) fn away<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let here = File::open("/proc/self/ns/mnt")?;
        self.leave()?;
        let done = work();
        setns(here, CloneFlags::CLONE_NEWNS)?;
        Ok(done)
    }

    fn leave(&self) -> io::Result<()> {
        Ok(setns(&self.machine, CloneFlags::CLONE_NEWNS)?)
    }
}

/// Moves this process into a copy of a namespace. Its working directory becomes the root.
pub(super) fn enter_copy(namespace: &OwnedFd) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    Ok(unshare(CloneFlags::CLONE_NEWNS)?)
}

/// Opens `/proc/self/ns`: after a change of mount namespace there is no path to it.
fn own_namespaces() -> io::Result<OwnedFd> {
    File::open("/proc/self/ns").map(OwnedFd::from)
}

fn namespace(own: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(openat(own, "mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Makes this mount the root and unmounts all others: they must not keep the machine's file systems
/// in use. `somewhere` is any directory.
pub(in crate::supervisor) fn become_root(root: &Mount, somewhere: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    root.attach(somewhere)?;
    chdir(somewhere)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(())
}

/// Attaches a mount in the slot of this number.
pub(in crate::supervisor) fn put(mount: &Mount, number: usize) -> io::Result<PathBuf> {
    let folder = mount.is_directory()?;
    let target = Path::new(if folder { FOLDERS } else { FILES }).join(number.to_string());
    // All copies share this file system, so another creation may have made it before.
    let made = if folder {
        fs::create_dir(&target)
    } else {
        File::options().write(true).create_new(true).open(&target).map(drop)
    };
    match made {
        Err(error) if error.raw_os_error() != Some(Errno::EEXIST as i32) => return Err(error),
        Ok(()) | Err(_) => mount.attach(&target)?,
    }
    Ok(target)
}

/// Makes the mount namespace read-only: other processes may see it from here on.
pub(in crate::supervisor) fn close() -> io::Result<()> {
    let none: Option<&str> = None;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    Ok(mount(none, "/", none, flags, none)?)
}
