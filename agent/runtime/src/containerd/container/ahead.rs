//! Root file systems of containers that will probably be created: containerd prepares them while
//! the sandbox is created.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use containerd_client::types::Mount;
use tokio::sync::oneshot;

use crate::containerd::Shared;
use crate::{ContainerSpec, Error};

/// Root file systems that are being prepared, by the containers' IDs; their containers were not
/// requested yet.
pub(in crate::containerd) type Ahead = BTreeMap<String, Root>;

pub(in crate::containerd) struct Root {
    sandbox: String,
    made: oneshot::Receiver<Result<Vec<Mount>, Error>>,
}

impl Shared {
    /// Starts preparing a container's root file system.
    pub(in crate::containerd) fn prepare_ahead(self: &Arc<Self>, sandbox: &str, spec: &ContainerSpec) {
        let Some(image) = spec.snapshot.clone() else { return };
        let (id, weak) = (spec.id.clone(), Arc::downgrade(self));
        let (told, made) = oneshot::channel();
        let sandbox = sandbox.to_owned();
        self.ahead().insert(id.clone(), Root { sandbox, made });
        self.spawn(async move {
            let Some(shared) = weak.upgrade() else { return };
            // The receiver may be gone: then the snapshot is removed by its name.
            drop(told.send(shared.prepare_root(&id, &image).await));
        });
    }

    /// Returns a container's root file system, if it was prepared ahead.
    pub(super) async fn prepared_ahead(&self, id: &str) -> Option<Vec<Mount>> {
        let root = self.ahead().remove(id)?;
        match root.made.await {
            Ok(Ok(mounts)) => Some(mounts),
            // The next attempt returns the error, if it fails too.
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Removes root file systems that were prepared for a sandbox and not used; returns the
    /// failures.
    pub(in crate::containerd) async fn remove_ahead(&self, sandbox: &str) -> Vec<String> {
        let unused: Vec<String> = {
            let ahead = self.ahead();
            let own = ahead.iter().filter(|(_, root)| root.sandbox == sandbox);
            own.map(|(id, _)| id.clone()).collect()
        };
        let mut failures = Vec::new();
        for id in unused {
            // Wait for it, whatever the result.
            drop(self.prepared_ahead(&id).await);
            if let Err(error) = self.remove_root(&id).await {
                failures.push(format!("remove snapshot {id}: {error}"));
                // Keep it for the next attempt: it is recorded only here.
                let (_, made) = oneshot::channel();
                let sandbox = sandbox.to_owned();
                self.ahead().insert(id, Root { sandbox, made });
            }
        }
        failures
    }

    pub(super) fn is_ahead(&self, id: &str) -> bool {
        self.ahead().contains_key(id)
    }

    fn ahead(&self) -> std::sync::MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
