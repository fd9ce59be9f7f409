//! Containers that will most likely be requested: a supervisor is told of them until its pod has a
//! network.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::{Shared, calls};
use crate::ContainerSpec;
use crate::protocol::{self, Early, PRECREATED};

/// Largest frame: all frames of a sandbox fit into a socket's buffer.
const SIZE: usize = 32 << 10;

/// Frames for the supervisor of a sandbox that does not exist yet.
pub(super) struct Frames {
    sender: mpsc::Sender<Vec<u8>>,
    /// `None` while the sandbox is being created.
    receiver: Option<mpsc::Receiver<Vec<u8>>>,
}

impl Default for Frames {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(PRECREATED);
        Self {
            sender,
            receiver: Some(receiver),
        }
    }
}

/// Frames by sandbox ID.
pub(super) type Announced = BTreeMap<String, Frames>;

impl Shared {
    fn all_announced(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the announcement until the sandbox is created, or removed.
    pub(super) fn foresee(&self, sandbox: &str, spec: &ContainerSpec, placed: bool) {
        if self.connections().contains_key(sandbox) {
            return;
        }
        let early = Early::Foresee {
            container_id: spec.id.clone(),
            stdio: calls::stdio(spec),
            placed,
        };
        // Best effort: errors of a container are reported when it is requested.
        let frame = calls::body(spec)
            .ok()
            .and_then(|body| protocol::encode(&early, &body).ok());
        let Some(frame) = frame.filter(|frame| frame.len() <= SIZE) else {
            return;
        };
        let mut announced = self.all_announced();
        // Frames beyond the limit, or too late for the supervisor, are dropped.
        let frames = announced.entry(sandbox.to_owned()).or_default();
        frames.sender.try_send(frame).ok();
    }

    /// Frames of a sandbox that is created now, and those to come.
    pub(super) fn announced(&self, sandbox: &str) -> mpsc::Receiver<Vec<u8>> {
        let mut announced = self.all_announced();
        let frames = announced.entry(sandbox.to_owned()).or_default();
        frames.receiver.take().unwrap_or_else(|| mpsc::channel(1).1)
    }

    /// Drops the frames of a sandbox.
    pub(super) fn forget_announced(&self, sandbox: &str) {
        self.all_announced().remove(sandbox);
    }
}
