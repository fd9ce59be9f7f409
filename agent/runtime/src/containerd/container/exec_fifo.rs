//! FIFO (`exec.fifo`) on which runc blocks a container's init process until the start.
//!
//! The init process writes to it just before `execve`, and both the process and runc's directory
//! may be gone soon after. An open descriptor of the FIFO shows by its modification time whether
//! that has happened.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::sys::stat::{Mode, UtimensatFlags, fstat, utimensat};
use nix::sys::time::TimeSpec;

use crate::containerd::Shared;

/// Root of runc's state under containerd: a directory per namespace, with one per container.
pub(in crate::containerd) const RUNC: &str = "/run/containerd/runc";
pub(in crate::containerd) const PIPE: &str = "exec.fifo";
/// Time that no present event has, however coarse the file system's clock is.
const BEFORE: TimeSpec = TimeSpec::new(1, 0);

pub(in crate::containerd) enum ExecFifo {
    /// Descriptor of a FIFO that had not been written to when it was opened.
    Held(OwnedFd),
    /// runc removes it as soon as the program was started.
    Gone,
}

impl ExecFifo {
    /// Opens the FIFO; `anew` resets its time.
    fn hold(container: &Path, anew: bool) -> io::Result<Self> {
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let container = open(container, directory, Mode::empty())?;
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let pipe = match openat(&container, PIPE, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(Self::Gone),
            pipe => pipe?,
        };
        if anew {
            let same = format!("/proc/self/fd/{}", pipe.as_raw_fd());
            utimensat(AT_FDCWD, same.as_str(), &BEFORE, &BEFORE, UtimensatFlags::FollowSymlink)?;
        }
        Ok(Self::Held(pipe))
    }

    /// True if the program was started.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Held(pipe) => fstat(pipe).is_ok_and(|status| status.st_mtime != BEFORE.tv_sec()),
            Self::Gone => true,
        }
    }
}

/// FIFOs of the tasks that are being started, each for the duration of its start.
#[derive(Clone, Default)]
pub(in crate::containerd) struct ExecFifos(Arc<Mutex<BTreeMap<String, Arc<ExecFifo>>>>);

impl ExecFifos {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ExecFifo>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// FIFO of a task during its start.
pub(in crate::containerd) struct Starting {
    id: String,
    fifo: Option<Arc<ExecFifo>>,
    all: ExecFifos,
}

impl Starting {
    pub(in crate::containerd) fn fifo(&self) -> Option<&ExecFifo> {
        self.fifo.as_deref()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}

impl Shared {
    /// Opens the FIFO of a task that was not ordered to start yet. Runtimes other than runc may
    /// have none.
    pub(super) fn begin_start(&self, id: &str) -> Starting {
        let fifo = self.open_exec_fifo(id, true).map(Arc::new);
        if let Some(fifo) = &fifo {
            self.exec_fifos.lock().insert(id.to_owned(), Arc::clone(fifo));
        }
        Starting {
            id: id.to_owned(),
            fifo,
            all: self.exec_fifos.clone(),
        }
    }

    /// Opens the FIFO of a task that an earlier agent may have ordered to run; that agent had reset
    /// its time.
    pub(in crate::containerd) fn exec_fifo(&self, id: &str) -> Option<ExecFifo> {
        self.open_exec_fifo(id, false)
    }

    /// True if a task that has ended while it was being started is known never to have run.
    pub(in crate::containerd) fn is_held_back(&self, id: &str) -> bool {
        let starting = self.exec_fifos.lock().get(id).cloned();
        let fifo = starting.or_else(|| self.exec_fifo(id).map(Arc::new));
        fifo.is_some_and(|fifo| !fifo.is_written())
    }

    fn open_exec_fifo(&self, id: &str, anew: bool) -> Option<ExecFifo> {
        let held = ExecFifo::hold(&Path::new(RUNC).join(&self.config.namespace).join(id), anew);
        if let Err(error) = &held {
            tracing::debug!(container = id, %error, "whether it has run is known from containerd alone");
        }
        held.ok()
    }
}
