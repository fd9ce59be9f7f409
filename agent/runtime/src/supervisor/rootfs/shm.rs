//! Shared memory of a pod: one tmpfs that all its containers have at `/dev/shm`.

use std::io;
use std::os::fd::OwnedFd;

use nix::libc;

use super::namespace::{self, MountNamespace};
use crate::sys::FileSystem;

/// Mount point in containers.
pub(crate) const TARGET: &str = "/dev/shm";
/// Size that other CRI runtimes give a pod's `/dev/shm`.
const SIZE: &[u8] = b"64m";

/// The tmpfs is mounted in a copy of the mount namespace, in which the pod's containers are
/// created. So the machine has no mount that a crash could leave behind, and the tmpfs is freed
/// with the last process that uses it.
pub(in crate::supervisor) struct SharedMemory(OwnedFd);

impl SharedMemory {
    /// Creates it, owned by a user and group of the machine. This process's working directory
    /// becomes the root.
    pub(in crate::supervisor) fn make(mntns: &MountNamespace, owner: u32) -> io::Result<Self> {
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
        mntns.with_memory(&memory).map(Self)
    }

    /// Moves this process into a copy of the mount namespace with the tmpfs. Its working directory
    /// becomes the root.
    pub(in crate::supervisor) fn enter(&self) -> io::Result<()> {
        namespace::enter_copy(&self.0)
    }
}
