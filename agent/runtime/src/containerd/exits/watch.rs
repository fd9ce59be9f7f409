//! Watches of processes: init processes of containers, loggers, and init processes of PID
//! namespaces.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::events::compare;
use super::gone;
use crate::containerd::sandbox::pause;
use crate::containerd::{Shared, logger};
use crate::{Event, State, sys};

/// Time in which containerd reports an exit before it is asked, and the number of times.
const UNTOLD: (Duration, u32) = (Duration::from_secs(2), 5);
/// Delay until a killed logger is replaced while its container runs: initial, and maximum after
/// failures.
const REPLACED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

impl Shared {
    /// Watches a container's init process. containerd may lose the event of its exit: a shim that
    /// cannot deliver it gives up.
    pub(in crate::containerd) fn watch_first(self: &Arc<Self>, container: &str, pid: i32) {
        let process = sys::pidfd_open(pid).ok();
        let (weak, id) = (Arc::downgrade(self), container.to_owned());
        self.spawn(async move {
            if let Some(process) = process {
                gone(process).await;
            }
            let (pause, tries) = UNTOLD;
            for _ in 0..tries {
                tokio::time::sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                if !shared.is_running(&id, pid) {
                    return;
                }
                tracing::warn!(container = id, "containerd did not tell of an end; it is asked");
                if let Err(error) = compare(&shared).await {
                    tracing::debug!(%error, "containerd is away");
                }
            }
        });
    }

    fn is_running(&self, container: &str, pid: i32) -> bool {
        let records = self.records();
        let mut all = records.iter().flat_map(|entry| entry.record.containers());
        all.any(|known| {
            known.id == container && matches!(known.state, State::Running { pid: known, .. } if known == pid)
        })
    }

    /// Replaces a logger that is killed. Meanwhile the output waits in the pipes, which the shim
    /// also holds open for reading.
    pub(in crate::containerd) fn watch_logger(self: &Arc<Self>, (sandbox, container): (&str, &str), pid: i32) {
        if !self.heard().insert(container.to_owned()) {
            return;
        }
        let directory = self.container_directory(sandbox, container);
        let (weak, id) = (Arc::downgrade(self), container.to_owned());
        self.spawn(async move {
            let mut pause = REPLACED.0;
            loop {
                if let Some(process) = logger::process(&directory) {
                    gone(process).await;
                }
                // The logger also ends with its container.
                tokio::time::sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                if !shared.is_running(&id, pid) {
                    shared.heard().remove(&id);
                    return;
                }
                if logger::process(&directory).is_some() {
                    continue;
                }
                pause = match shared.replace_logger(&directory).await {
                    Ok(()) => {
                        tracing::warn!(container = id, "the writer of a log was gone; there is a new one");
                        REPLACED.0
                    }
                    Err(error) if pause == REPLACED.0 => {
                        tracing::warn!(container = id, error, "the writer of a log is gone");
                        pause * 2
                    }
                    Err(_) => REPLACED.1.min(pause * 2),
                };
            }
        });
    }

    async fn replace_logger(self: &Arc<Self>, directory: &Path) -> Result<(), String> {
        let directory = directory.to_owned();
        let replacing = self.blocking("start the log's writer", move |shared| shared.start_logger(&directory));
        let replaced = replacing.await.map_err(|error| error.to_string())?;
        replaced.map_err(|error| error.to_string())
    }

    fn heard(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the init process of a shared PID namespace: the sandbox is lost with it.
    pub(in crate::containerd) fn watch_pause(self: &Arc<Self>, sandbox: &str) {
        let process = {
            let records = self.records();
            let entry = records.get(sandbox);
            entry.and_then(|entry| entry.record.pause.as_ref().and_then(pause::Process::open))
        };
        let Some(process) = process else { return };
        let (weak, id) = (Arc::downgrade(self), sandbox.to_owned());
        self.spawn(async move {
            gone(process).await;
            let Some(shared) = weak.upgrade() else { return };
            {
                let mut records = shared.records();
                let Some(entry) = records.get_mut(&id).filter(|entry| !entry.leaving) else {
                    return;
                };
                entry.record.sandbox.lost = true;
            }
            tracing::error!(sandbox = id, "the shared pid namespace ended");
            drop(shared.events.send(Event::SandboxLost { sandbox_id: id }));
        });
    }
}
