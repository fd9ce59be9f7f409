//! The pod's shared memory: one file system that all its containers have at `/dev/shm`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chdir, pivot_root};

use crate::sys::{FileSystem, Mount};

/// Where containers have it.
pub(crate) const TARGET: &str = "/dev/shm";
/// What other runtimes and the kubelet give a pod.
const SIZE: &[u8] = b"64m";

/// The file system is mounted in a namespace of its own, which holds nothing else. So the machine has no mount that a crash
/// could leave behind, and it goes with the last process that uses it.
pub(super) struct SharedMemory {
    holder: OwnedFd,
    home: OwnedFd,
}

impl SharedMemory {
    /// Makes it, for a user and group of the machine. `somewhere` is any directory; this process's working directory becomes the root.
    pub(super) fn make(somewhere: &Path, owner: u32) -> io::Result<Self> {
        let home = own_namespace()?;
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        let memory = FileSystem::open("tmpfs")?;
        memory.set("source", b"shm")?;
        memory.set("size", SIZE)?;
        memory.set("mode", b"1777")?;
        if owner != 0 {
            memory.set("uid", owner.to_string().as_bytes())?;
            memory.set("gid", owner.to_string().as_bytes())?;
        }
        let memory = memory.mount(u32::try_from(attributes).map_err(io::Error::other)?)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let holder = own_namespace().and_then(|holder| become_root(&memory, somewhere).map(|()| holder));
        setns(&home, CloneFlags::CLONE_NEWNS)?;
        Ok(Self { holder: holder?, home })
    }

    /// Another mount of it, to be attached. This process's working directory becomes the root.
    pub(super) fn mount(&self) -> io::Result<Mount> {
        setns(&self.holder, CloneFlags::CLONE_NEWNS)?;
        let copy = Mount::copy(Path::new("/"));
        setns(&self.home, CloneFlags::CLONE_NEWNS)?;
        copy
    }
}

fn own_namespace() -> io::Result<OwnedFd> {
    File::open("/proc/self/ns/mnt").map(OwnedFd::from)
}

/// Leaves nothing but this mount in the namespace: what else the machine had mounted must not stay in use because of it.
pub(super) fn become_root(memory: &Mount, somewhere: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    memory.attach(somewhere)?;
    chdir(somewhere)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(())
}
