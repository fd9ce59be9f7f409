//! Registered drivers, and the volumes of drivers that the node uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sha2::{Digest, Sha256};
use tokio::sync::{Notify, OwnedMutexGuard};

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle {
    pub(crate) driver: String,
    pub(crate) volume: String,
}

impl Handle {
    /// Name of the volume in the Node's status (`GetUniqueVolumeName`, `pkg/volume/util/util.go`).
    pub(crate) fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.volume)
    }

    /// Name of the `VolumeAttachment` (`getAttachmentName`, `pkg/volume/csi/csi_attacher.go`).
    pub(crate) fn attachment(&self, node: &str) -> String {
        format!("csi-{}", hash(&format!("{}{}{node}", self.volume, self.driver)))
    }
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hash(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

/// Registered driver.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) driver: csi::Driver,
    pub(crate) version: Vec<u64>,
    /// Socket at which it has registered.
    pub(crate) socket: PathBuf,
}

/// State of a volume.
#[derive(Debug, Default)]
struct State {
    /// Pods that want it, or for which it is published.
    pods: BTreeSet<String>,
    /// True if the Node's status lists the volume.
    in_use: bool,
    /// True if this agent staged it.
    staged: bool,
}

/// Drivers and their volumes.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    registered: Mutex<BTreeMap<String, Registered>>,
    volumes: Mutex<BTreeMap<Handle, State>>,
    locks: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Notified when a pod has left its volumes.
    pub(crate) left: Notify,
}

impl Drivers {
    fn registered(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<Handle, State>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, name: &str, driver: Registered) {
        self.registered().insert(name.to_owned(), driver);
    }

    /// Forgets a driver unless it has registered at another socket; returns whether it is gone.
    pub(crate) fn unregister(&self, name: &str, socket: &Path) -> bool {
        let mut registered = self.registered();
        if registered.get(name).is_some_and(|known| known.socket != socket) {
            return false;
        }
        registered.remove(name);
        true
    }

    pub(crate) fn version(&self, name: &str) -> Option<Vec<u64>> {
        self.registered().get(name).map(|known| known.version.clone())
    }

    /// Returns a registered driver; the error has upstream's text (`newCsiDriverClient`,
    /// `pkg/volume/csi/csi_client.go`).
    pub(crate) fn get(&self, name: &str) -> Result<csi::Driver, String> {
        let driver = self.registered().get(name).map(|known| known.driver.clone());
        driver.ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    /// Locks a pod, by its UID, or a volume, by its unique name. Lock order: pod before volume.
    pub(crate) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, lock| lock.strong_count() > 0);
            let known = all.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(key.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }

    /// Notes that a pod uses a volume, or that an earlier agent did; returns whether the Node's
    /// status must list it now.
    pub(crate) fn take(&self, handle: &Handle, pod: Option<&str>, attached: bool) -> bool {
        let mut volumes = self.volumes();
        let state = volumes.entry(handle.clone()).or_default();
        state.pods.extend(pod.map(str::to_owned));
        attached && !std::mem::replace(&mut state.in_use, true)
    }

    /// Notes that a pod uses no volume any more.
    pub(crate) fn leave(&self, pod: &str) {
        self.volumes().values_mut().for_each(|state| {
            state.pods.remove(pod);
        });
    }

    /// True if a pod besides this one uses a volume, or wants it.
    pub(crate) fn is_others(&self, handle: &Handle, pod: &str) -> bool {
        let volumes = self.volumes();
        let pods = volumes.get(handle).map(|state| &state.pods);
        pods.is_some_and(|pods| pods.iter().any(|known| known != pod))
    }

    /// Forgets a volume; returns whether the Node's status listed it.
    pub(crate) fn release(&self, handle: &Handle) -> bool {
        self.volumes().remove(handle).is_some_and(|state| state.in_use)
    }

    pub(crate) fn note_staged(&self, handle: &Handle) {
        self.volumes().entry(handle.clone()).or_default().staged = true;
    }

    pub(crate) fn is_staged(&self, handle: &Handle) -> bool {
        self.volumes().get(handle).is_some_and(|state| state.staged)
    }

    /// Returns the volumes that no pod uses.
    pub(crate) fn unused(&self) -> Vec<Handle> {
        let volumes = self.volumes();
        let unused = volumes.iter().filter(|(_, state)| state.pods.is_empty());
        unused.map(|(handle, _)| handle.clone()).collect()
    }

    /// Returns the Node's `status.volumesInUse`.
    pub(crate) fn in_use(&self) -> Vec<String> {
        let volumes = self.volumes();
        let used = volumes.iter().filter(|(_, state)| state.in_use);
        used.map(|(handle, _)| handle.unique_name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_controllers_look_for() {
        let handle = Handle {
            driver: "hostpath.csi.k8s.io".to_owned(),
            volume: "vol1".to_owned(),
        };
        assert_eq!(handle.unique_name(), "kubernetes.io/csi/hostpath.csi.k8s.io^vol1");
        let hashed = hash("vol1hostpath.csi.k8s.ionode");
        assert_eq!(handle.attachment("node"), format!("csi-{hashed}"));
        assert_eq!(
            hash(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn a_volume_is_in_use_until_it_is_released() {
        let (drivers, handle) = (
            Drivers::default(),
            Handle {
                driver: "d".to_owned(),
                volume: "v".to_owned(),
            },
        );
        assert!(!drivers.take(&handle, None, false) && drivers.in_use().is_empty());
        assert!(drivers.take(&handle, Some("a"), true) && !drivers.take(&handle, Some("b"), true));
        assert_eq!(drivers.in_use(), ["kubernetes.io/csi/d^v"]);
        drivers.leave("a");
        assert!(drivers.unused().is_empty());
        drivers.leave("b");
        assert_eq!(drivers.unused(), std::slice::from_ref(&handle));
        drivers.note_staged(&handle);
        assert!(drivers.is_staged(&handle) && drivers.release(&handle));
        assert!(drivers.unused().is_empty() && !drivers.is_staged(&handle));
    }
}
