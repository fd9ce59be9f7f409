//! Removal of sandboxes, in any state.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::libc;

use super::Shared;
use crate::error::{finish, io_error};
use crate::files::{record, remove_directory};
use crate::protocol::Call;
use crate::supervisor::{SANDBOX, SandboxRecord, started};
use crate::{Error, sys};

/// Time for a supervisor to kill its containers and exit.
const GRACE: Duration = Duration::from_secs(5);
/// Timeout of killed processes' exit.
pub(super) const DEATH: Duration = Duration::from_secs(5);

impl Shared {
    /// Kills all processes of a sandbox; succeeds if it does not exist.
    pub(super) async fn end(self: &Arc<Self>, id: &str) -> Result<(), Error> {
        let mut failures = Vec::new();
        if !self.end_supervisor(id, &mut failures).await
            && let Err(error) = self.kill(id).await
        {
            failures.push(format!("kill processes: {error}"));
        }
        failpoint::reach("processes ended");
        if failures.is_empty() {
            self.ended().insert(id.to_owned());
        }
        finish(failures)
    }

    /// Removes a sandbox; succeeds if it does not exist.
    pub(super) async fn remove(self: &Arc<Self>, id: &str) -> Result<(), Error> {
        self.forget_announced(id);
        let ended = if self.ended().contains(id) {
            Ok(())
        } else {
            self.end(id).await
        };
        self.ended().remove(id);
        let (shared, group, directory) = (Arc::clone(self), self.group(id), self.directory(id));
        let removed = tokio::task::spawn_blocking(move || {
            let mut failures = shared.cgroups.remove(&group);
            if !failures.is_empty() {
                // Some killed processes are not dead yet.
                failures.clear();
                if let Err(error) = shared.cgroups.kill(&group, DEATH) {
                    failures.push(format!("kill processes: {error}"));
                }
                failures.extend(shared.cgroups.remove(&group));
            }
            failpoint::reach("group removed");
            remove_directory(&directory, &mut failures);
            failures
        });
        let failures = removed.await.unwrap_or_else(|error| vec![error.to_string()]);
        ended.and(finish(failures))
    }

    /// Asks the supervisor to exit, and kills it if it does not. Returns whether it has confirmed
    /// the exit of all others.
    async fn end_supervisor(&self, id: &str, failures: &mut Vec<String>) -> bool {
        let connection = self.connections().get(id).cloned();
        let Some(connection) = connection else {
            self.kill_unconnected(id, failures);
            return false;
        };
        connection.leaving.store(true, Ordering::Release);
        let asked = tokio::time::timeout(GRACE, connection.call(Call::Shutdown, &[])).await;
        let all = matches!(asked, Ok(Ok(_)));
        match asked {
            Ok(Ok(_) | Err(Error::SandboxLost(_))) => {}
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(_elapsed) => {
                tracing::warn!(sandbox = id, "the supervisor does not answer: killed");
                drop(sys::pidfd_send_signal(connection.process.as_fd(), libc::SIGKILL));
            }
        }
        if tokio::time::timeout(GRACE, connection.closed()).await.is_err() {
            drop(sys::pidfd_send_signal(connection.process.as_fd(), libc::SIGKILL));
        }
        self.connections().remove(id);
        all
    }

    /// Kills a supervisor that could not be connected to but may still run: its record has its PID.
    fn kill_unconnected(&self, id: &str, failures: &mut Vec<String>) {
        let Ok(Some(known)) = record::read::<SandboxRecord>(&self.directory(id).join(SANDBOX)) else {
            return;
        };
        let Ok(process) = sys::pidfd_open(known.supervisor) else {
            return;
        };
        // Compared after the pidfd is open: the descriptor keeps referring to this process.
        if started(&known.supervisor.to_string()) != Some(known.started) {
            return;
        }
        match sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                failures.push(format!("kill supervisor: {error}"));
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Kills all processes in a sandbox's cgroup and waits for their exit.
    pub(super) async fn kill(self: &Arc<Self>, id: &str) -> Result<(), Error> {
        let (shared, group) = (Arc::clone(self), self.group(id));
        let killed = tokio::task::spawn_blocking(move || shared.cgroups.kill(&group, DEATH));
        let result = killed.await.map_err(io::Error::other).flatten();
        result.map_err(io_error("kill the processes of", &self.group(id)))
    }

    /// Removes one container of a sandbox whose supervisor is gone.
    pub(super) async fn remove_lost_container(self: &Arc<Self>, id: &str, container: &str) -> Result<(), Error> {
        self.kill(id).await?;
        let group = self.group(id).join(container);
        let directory = self.directory(id).join(crate::supervisor::CONTAINERS).join(container);
        let shared = Arc::clone(self);
        let removed = tokio::task::spawn_blocking(move || {
            let mut failures = shared.cgroups.remove(&group);
            remove_directory(&directory, &mut failures);
            failures
        });
        finish(removed.await.unwrap_or_else(|error| vec![error.to_string()]))
    }
}
