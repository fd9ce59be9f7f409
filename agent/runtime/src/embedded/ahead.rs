//! What a supervisor is told of with its configuration: containers that will most likely be asked for.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use super::{Shared, calls};
use crate::ContainerSpec;
use crate::protocol::{self, Early, FORESEEN};

/// So much each of them may be: all of them lie in a socket, and nobody waits for its reader.
const SIZE: usize = 32 << 10;

/// Frames for supervisors that there are not yet, by their sandboxes' ids.
pub(super) type Foreseen = BTreeMap<String, Vec<Vec<u8>>>;

impl Shared {
    fn foreseen(&self) -> MutexGuard<'_, Foreseen> {
        self.foreseen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it until the sandbox is made, or removed.
    pub(super) fn foresee(&self, sandbox: &str, spec: &ContainerSpec) {
        if self.connections().contains_key(sandbox) {
            return;
        }
        let early = Early::Foresee {
            container_id: spec.id.clone(),
            stdio: calls::stdio(spec),
        };
        // Nobody relies on it: what is wrong with a container is told when it is asked for.
        let frame = calls::body(spec)
            .ok()
            .and_then(|body| protocol::encode(&early, &body).ok());
        let Some(frame) = frame.filter(|frame| frame.len() <= SIZE) else {
            return;
        };
        let mut foreseen = self.foreseen();
        let frames = foreseen.entry(sandbox.to_owned()).or_default();
        if frames.len() < FORESEEN {
            frames.push(frame);
        }
    }

    /// What is foreseen of a sandbox; it is forgotten here.
    pub(super) fn take_foreseen(&self, sandbox: &str) -> Vec<Vec<u8>> {
        self.foreseen().remove(sandbox).unwrap_or_default()
    }
}
