//! Children that create containers: their environment and their arguments.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

use super::create::{self, Creation};
use super::spec::PidNamespace;
use super::start::Starter;
use super::sync_pipe::SyncPipe;
use crate::cgroup::Cgroups;
use crate::supervisor::job::{self, Child, Ends};
use crate::supervisor::namespaces::users::Users;
use crate::supervisor::process::affinity;
use crate::supervisor::rootfs::namespace::MountNamespace;
use crate::supervisor::rootfs::shm::SharedMemory;
use crate::supervisor::streams::stdio;
use crate::supervisor::{CONTAINERS, FIRST};
use crate::{Refusal, protocol};

/// Environment that all containers of a pod are created in.
pub(in crate::supervisor) struct PodEnvironment<'a> {
    pub(in crate::supervisor) cgroups: &'a Cgroups,
    /// Cgroup of the pod, relative to the hierarchies.
    pub(in crate::supervisor) group: &'a Path,
    /// Directory of the sandbox, absolute.
    pub(in crate::supervisor) directory: &'a Path,
    pub(in crate::supervisor) mntns: &'a MountNamespace,
    /// User namespace of the pod; `None` for the machine's.
    pub(in crate::supervisor) users: Option<&'a Users>,
    /// Shared memory of the pod; `None` for the machine's.
    pub(in crate::supervisor) memory: Option<&'a SharedMemory>,
}

/// Arguments of a child that creates a container.
pub(in crate::supervisor) struct Asked<'a> {
    pub(in crate::supervisor) id: &'a str,
    pub(in crate::supervisor) spec: &'a [u8],
    pub(in crate::supervisor) stdio: protocol::Stdio,
    pub(in crate::supervisor) pids: PidNamespace,
    /// Wait for the request; `None` if it does not wait.
    pub(in crate::supervisor) sync_pipe: Option<SyncPipe>,
}

impl PodEnvironment<'_> {
    /// Forks a child that creates a container; also returns our ends of the container's streams.
    pub(in crate::supervisor) fn begin(&self, asked: Asked<'_>, foreign: &[RawFd]) -> Result<(Child, Ends), Refusal> {
        let directory = self.directory.join(CONTAINERS).join(asked.id);
        // Take the directory that was made ahead, if it is still there.
        fs::rename(self.directory.join(FIRST), &directory)
            .or_else(|_| fs::create_dir(&directory))
            .map_err(|error| Refusal::failed("create the container's directory", &error))?;
        let begun = self.begin_in(directory.clone(), asked, foreign);
        if begun.is_err() {
            // The next attempt creates it again.
            trees::remove(&directory).ok();
        }
        begun
    }

    fn begin_in(&self, directory: PathBuf, asked: Asked<'_>, foreign: &[RawFd]) -> Result<(Child, Ends), Refusal> {
        let failed = |doing: &'static str| move |error: io::Error| Refusal::failed(doing, &error);
        let Asked {
            id,
            spec,
            stdio: wanted,
            pids,
            sync_pipe,
        } = asked;
        let group = self.group.join(id);
        let (streams, [stdin, stdout, stderr]) = stdio::open(id, wanted).map_err(failed("make the streams"))?;
        let starter = Starter::new().map_err(failed("make a socket"))?;
        let leaf = create::leaf(self.cgroups, &group);
        let tracking = self.cgroups.open_tracking(&leaf);
        let (grouped, mut told) = io::pipe().map_err(failed("make a pipe"))?;
        let foreign = [foreign, &[told.as_raw_fd()]].concat();
        let creation = Creation {
            cgroups: self.cgroups,
            group,
            grouped,
            directory,
            mntns: self.mntns,
            pid_namespace: pids,
            users: self.users,
            memory: self.memory,
            stdin,
            stdout,
            stderr,
            terminal: wanted.terminal,
            starter: &starter,
            sync_pipe: sync_pipe.as_ref(),
        };
        let work = |tracked| create::create(creation, spec, tracked);
        let child = job::spawn_lingering(tracking.as_ref(), &foreign, work, || {
            // Without a supervisor there is nothing to wait for.
            sync_pipe.as_ref().map_or(Ok(()), SyncPipe::until_asked).ok();
        });
        let child = child.map_err(failed("fork"))?;
        affinity::send_away(child.pid);
        // The child works meanwhile, and finds out itself if something is missing.
        if self.cgroups.create(&leaf).is_ok() {
            told.write_all(&[0]).ok();
        }
        Ok((child, Ends { streams, starter }))
    }
}
