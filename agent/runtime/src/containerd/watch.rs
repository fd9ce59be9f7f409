//! Processes whose end must be noticed: first ones of containers, writers of logs, holders of pid namespaces.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::events::compare;
use super::logger::{self, Order};
use super::{Shared, pause};
use crate::{Event, State, record, sys};

/// containerd tells of an end within this, or it is asked; so often.
const UNTOLD: (Duration, u32) = (Duration::from_secs(2), 5);
/// A writer of a log that ended is replaced after this, as long as its container runs.
const REPLACED: Duration = Duration::from_secs(1);

impl Shared {
    /// Watches a container's first process. containerd may lose the event of its end: a shim that cannot deliver it gives up.
    pub(super) fn watch_first(self: &Arc<Self>, container: &str, pid: i32) {
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

    /// Replaces the writer of a log that is killed: a container whose output nobody reads stops at a full pipe. One that the shim
    /// has started ends with the pipe, and is the shim's.
    pub(super) fn watch_logger(self: &Arc<Self>, sandbox: &str, container: &str, pid: i32) {
        let directory = self.container_directory(sandbox, container);
        let order = record::read::<Order>(&directory.join(logger::ORDER));
        if !order.is_ok_and(|order| order.is_some_and(|order| order.through_pipes())) {
            return;
        }
        let (weak, id) = (Arc::downgrade(self), container.to_owned());
        self.spawn(async move {
            loop {
                if let Some(process) = logger::process(&directory) {
                    gone(process).await;
                }
                // It also ends with its container.
                tokio::time::sleep(REPLACED).await;
                let Some(shared) = weak.upgrade() else { return };
                if !shared.is_running(&id, pid) {
                    return;
                }
                tracing::warn!(container = id, "the writer of a log is gone; there is a new one");
                let own = directory.clone();
                let started = shared.blocking("start the log's writer", move |shared| {
                    logger::start(&shared.logger, &own)
                });
                match started.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(container = id, %error, "a log has no writer"),
                    Err(error) => tracing::warn!(container = id, %error, "a log has no writer"),
                }
            }
        });
    }

    /// A sandbox whose shared pid namespace ends is lost.
    pub(super) fn watch_pause(self: &Arc<Self>, sandbox: &str) {
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

/// Waits for the end of a process.
#[expect(unsafe_code, reason = "tokio wants to be promised that the descriptor stays open")]
pub(super) async fn gone(process: OwnedFd) {
    // SAFETY: an owned descriptor is closed when it is dropped, with or after its registration.
    let Ok(process) = (unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }) else {
        return;
    };
    drop(process.readable().await);
}
