//! Registered drivers, and the volumes of drivers that the node uses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sha2::{Digest, Sha256};
use tokio::sync::OwnedMutexGuard;

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
}

/// State of a volume.
#[derive(Clone, Copy, Debug, Default)]
struct State {
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

    pub(crate) fn unregister(&self, name: &str) {
        self.registered().remove(name);
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
            match all.get(key).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::default();
                    all.insert(key.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }

    /// Notes that a volume is being used; returns whether the Node's status must list it now.
    pub(crate) fn take(&self, handle: &Handle, attached: bool) -> bool {
        let mut volumes = self.volumes();
        let state = volumes.entry(handle.clone()).or_default();
        attached && !std::mem::replace(&mut state.in_use, true)
    }

    /// Notes that a volume is not used any more; returns whether the Node's status listed it.
    pub(crate) fn release(&self, handle: &Handle) -> bool {
        self.volumes().remove(handle).is_some_and(|state| state.in_use)
    }

    pub(crate) fn note_staged(&self, handle: &Handle) {
        self.volumes().entry(handle.clone()).or_default().staged = true;
    }

    pub(crate) fn is_staged(&self, handle: &Handle) -> bool {
        self.volumes().get(handle).is_some_and(|state| state.staged)
    }

    pub(crate) fn used(&self) -> Vec<Handle> {
        self.volumes().keys().cloned().collect()
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
        assert!(!drivers.take(&handle, false) && drivers.in_use().is_empty());
        assert!(drivers.take(&handle, true) && !drivers.take(&handle, true));
        assert_eq!(drivers.in_use(), ["kubernetes.io/csi/d^v"]);
        drivers.note_staged(&handle);
        assert!(drivers.is_staged(&handle) && drivers.release(&handle));
        assert!(drivers.used().is_empty() && !drivers.is_staged(&handle));
    }
}
