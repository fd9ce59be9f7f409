//! Work of a supervisor before it knows its pod: namespaces and mounts that nearly every pod needs.

use std::fs::{self, File};
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode, umask};
use nix::unistd::setsid;

use super::users::Users;
use crate::supervisor::rootfs::shm::SharedMemory;
use crate::supervisor::{Failure, at, take_signals};
use crate::{SandboxSpec, sys};

/// Namespaces that every supervisor unshares at first.
const OWN: CloneFlags = CloneFlags::CLONE_NEWIPC.union(CloneFlags::CLONE_NEWUTS);

/// Namespaces of the machine, to return to for pods that use them.
pub(super) struct Machine {
    ipc: File,
    uts: File,
}

impl Machine {
    /// Opens the namespaces of this process.
    fn find() -> io::Result<Self> {
        Ok(Self {
            ipc: File::open("/proc/self/ns/ipc")?,
            uts: File::open("/proc/self/ns/uts")?,
        })
    }

    fn join(&self, wanted: CloneFlags) -> io::Result<()> {
        for (namespace, flag) in [
            (&self.ipc, CloneFlags::CLONE_NEWIPC),
            (&self.uts, CloneFlags::CLONE_NEWUTS),
        ] {
            if wanted.contains(flag) {
                setns(namespace, flag)?;
            }
        }
        Ok(())
    }
}

/// Process that is ready to hold any pod.
pub(in crate::supervisor) struct Ready {
    pub(in crate::supervisor) signals: SignalFd,
    /// Shared memory owned by the machine's root, if it was made ahead.
    pub(in crate::supervisor) memory: Option<SharedMemory>,
    machine: Machine,
}

impl Ready {
    /// Prepares this process.
    pub(in crate::supervisor) fn get() -> Result<Self, Failure> {
        // EPERM: it is a session leader already.
        setsid().ok();
        umask(Mode::from_bits_truncate(0o022));
        sys::become_subreaper().map_err(at("become a subreaper"))?;
        // Fails without CAP_SYS_RESOURCE: then its small size is its only protection from the OOM
        // killer.
        drop(fs::write("/proc/self/oom_score_adj", "-999"));
        let machine = Machine::find().map_err(at("find the machine's namespaces"))?;
        unshare(OWN).map_err(at("unshare namespaces"))?;
        Ok(Self {
            signals: take_signals().map_err(at("take signals"))?,
            memory: None,
            machine,
        })
    }

    /// Keeps the namespaces that the pod needs, and returns to the machine's others.
    pub(in crate::supervisor) fn settle(&self, spec: &SandboxSpec, users: Option<&Users>) -> io::Result<()> {
        let mut own = CloneFlags::empty();
        own.set(CloneFlags::CLONE_NEWIPC, !spec.host_ipc);
        own.set(CloneFlags::CLONE_NEWUTS, spec.netns.is_some());
        self.machine.join(OWN.difference(own))?;
        // Namespaces of a pod with `hostUsers: false` belong to its user namespace.
        users.map_or(Ok(()), |users| users.unshare(own))
    }
}
