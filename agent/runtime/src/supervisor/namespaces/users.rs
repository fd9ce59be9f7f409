//! User namespace of a pod (`hostUsers: false`), which owns the pod's other namespaces.
//!
//! The supervisor stays outside: a process that escapes from a container has no privileges on the
//! machine.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, Uid, setfsgid, setfsuid, setgroups, setresgid, setresuid};

use crate::supervisor::process::user::Identity;
use crate::{Refusal, sys};

/// Number of user and group IDs of a pod.
const COUNT: u32 = 65_536;

/// User namespace of a pod.
pub(in crate::supervisor) struct Users {
    namespace: OwnedFd,
    first: u32,
}

impl Users {
    /// Opens the user namespace that owns a network namespace; `first` is the machine's ID of its
    /// root.
    pub(in crate::supervisor) fn of(netns: &File, first: u32) -> io::Result<Self> {
        let namespace = sys::owning_users(netns.as_fd())?;
        Ok(Self { namespace, first })
    }

    pub(in crate::supervisor) fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Path of the namespace for this process and its forks.
    pub(in crate::supervisor) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.namespace.as_raw_fd()))
    }

    /// Maps a user or group ID of the pod to the machine's.
    pub(in crate::supervisor) fn on_machine(&self, id: u32) -> Option<u32> {
        Some(id).filter(|id| *id < COUNT)?.checked_add(self.first)
    }

    /// The machine's user ID of the pod's root.
    pub(in crate::supervisor) fn root(&self) -> u32 {
        self.first
    }

    /// Refuses IDs that are not mapped in this namespace.
    pub(in crate::supervisor) fn check(&self, user: &str, identity: &Identity) -> Result<(), Refusal> {
        let mut all = [identity.uid, identity.gid]
            .into_iter()
            .chain(identity.supplementary.iter().copied());
        match all.find(|id| self.on_machine(*id).is_none()) {
            None => Ok(()),
            Some(_) => Err(Refusal::User {
                user: user.to_owned(),
                reason: format!(
                    "ids must be within 0 to {} where the pod has users of its own (hostUsers is false)",
                    COUNT - 1
                ),
            }),
        }
    }

    /// Creates files as the pod's root: the machine's root is not mapped in ID-mapped mounts of the
    /// pod.
    pub(in crate::supervisor) fn as_root<T>(&self, work: impl FnOnce() -> T) -> T {
        let root = (Uid::from_raw(self.first), Gid::from_raw(self.first));
        let (user, group) = (setfsuid(root.0), setfsgid(root.1));
        let done = work();
        setfsuid(user);
        setfsgid(group);
        done
    }

    /// Makes this process root of the namespace.
    pub(in crate::supervisor) fn enter(&self) -> io::Result<()> {
        setns(&self.namespace, CloneFlags::CLONE_NEWUSER)?;
        become_root()
    }

    /// Moves this process into new namespaces that are owned by this user namespace, but not into
    /// it.
    pub(in crate::supervisor) fn unshare(&self, flags: CloneFlags) -> io::Result<()> {
        let (mut ready, told) = io::pipe()?;
        let (wait, go) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Child => {
                drop(go);
                let made = self
                    .enter()
                    .and_then(|()| unshare(flags).map_err(io::Error::from))
                    .and_then(|()| nix::unistd::write(&told, &[1]).map_err(io::Error::from));
                // Ends when the supervisor has joined or is gone.
                nix::unistd::read(&wait, &mut [0]).ok();
                sys::exit_now(i32::from(made.is_err()))
            }
            ForkResult::Parent { child } => {
                drop((told, wait));
                let joined = ready.read_exact(&mut [0]).and_then(|()| join(child, flags));
                drop(go);
                let ended = waitpid(child, None);
                joined?;
                ended?;
                Ok(())
            }
        }
    }
}

/// Joins namespaces of a child, which waits.
fn join(child: Pid, flags: CloneFlags) -> io::Result<()> {
    let process = sys::pidfd_open(child.as_raw())?;
    sys::join_namespaces(process.as_fd(), flags)
}

/// Becomes root in a user namespace that was just entered, where the caller's IDs are not mapped
/// yet.
pub(in crate::supervisor) fn become_root() -> io::Result<()> {
    setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    Ok(())
}
