//! Orphans of a crash, which belong to no sandbox of ours: processes and cgroups.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc;

use super::Shared;
use super::removal::DEATH;
use crate::cgroup::{Cgroups, pause};
use crate::clock::monotonic;
use crate::error::io_error;
use crate::supervisor::{GROUP, session};
use crate::{Error, sys};

impl Shared {
    fn root(&self) -> PathBuf {
        PathBuf::from(&self.config.cgroup_root)
    }

    /// Kills every supervisor but these, with its children, and the zygotes of earlier agents.
    pub(super) async fn end_strays(self: &Arc<Self>, kept: BTreeSet<i32>) -> Result<(), Error> {
        let (shared, group) = (Arc::clone(self), self.root().join(GROUP));
        let ended = tokio::task::spawn_blocking(move || end_strays(&shared.cgroups, &group, &kept));
        let result = ended.await.map_err(io::Error::other).flatten();
        result.map_err(io_error("end the processes of", &self.root().join(GROUP)))
    }

    /// Kills and removes the groups of sandboxes below our root, except these; returns the
    /// failures.
    pub(super) async fn collect_groups(self: &Arc<Self>, kept: BTreeSet<String>) -> Vec<String> {
        let (shared, root) = (Arc::clone(self), self.root());
        let collected = tokio::task::spawn_blocking(move || {
            let mut failures = Vec::new();
            for group in shared.cgroups.strays(&root, &kept) {
                tracing::info!(group = %group.display(), "removing a cgroup that belongs to nothing");
                if let Err(error) = shared.cgroups.kill(&group, DEATH) {
                    failures.push(format!("kill processes of {}: {error}", group.display()));
                }
                failures.extend(shared.cgroups.remove(&group));
            }
            failures
        });
        collected.await.unwrap_or_else(|error| vec![error.to_string()])
    }
}

fn end_strays(cgroups: &Cgroups, group: &Path, kept: &BTreeSet<i32>) -> io::Result<()> {
    let deadline = monotonic() + DEATH;
    loop {
        // A supervisor leads a session; its children are in it while they are in this group.
        let stray = |pid: &i32| session(*pid).is_some_and(|session| !kept.contains(&session));
        let strays: Vec<i32> = cgroups.members(group)?.into_iter().filter(stray).collect();
        if strays.is_empty() {
            return Ok(());
        }
        for pid in strays {
            // Its PID may have been reused: then it is not in this group any more.
            if let Ok(process) = sys::pidfd_open(pid)
                && cgroups.members(group)?.contains(&pid)
            {
                drop(sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL));
            }
        }
        if monotonic() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        pause();
    }
}
