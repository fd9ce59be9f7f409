//! One image of the node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oci_spec::image::ImageConfiguration;

use crate::index::Record;

/// An image that is complete on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the configuration: `sha256:…`.
    pub id: String,
    /// Full names, `docker.io/library/nginx:1.14.2`. Empty for an image that was pulled by digest alone.
    pub names: Vec<String>,
    /// Full names with the digest of the index or manifest that they stood for: `docker.io/library/nginx@sha256:…`.
    /// Empty for images from docker-save archives, which carry none.
    pub digests: Vec<String>,
    /// Bytes of the configuration and of the layers as they were transferred.
    pub size: u64,
    /// The configuration: environment, command, user, …
    pub config: ImageConfiguration,
    /// Directories of the layers, lowest first, ready for overlayfs: whiteouts are character devices 0/0, opaque
    /// directories carry `trusted.overlay.opaque`. None where containerd has the image.
    pub layers: Vec<PathBuf>,
    /// The name of containerd's committed snapshot, where containerd has the image.
    pub snapshot: Option<String>,
    /// It was imported: as long as it has a name it is not removed to make room, since no registry need have it.
    pub pinned: bool,
}

impl Image {
    /// What a container's `imageID` shows: the name with its digest where there is one, else the id.
    pub fn image_id(&self) -> &str {
        self.digests.first().unwrap_or(&self.id)
    }

    /// The image as the node's private socket shows it: id, names, digests, size in bytes.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "id": self.id, "names": self.names, "digests": self.digests, "size": self.size })
    }
}

/// The images that somebody holds, by id: the pods of a node have few between them, and each holds its own for as long as it
/// runs.
#[derive(Default)]
pub(crate) struct Held(Mutex<BTreeMap<String, Weak<Image>>>);

impl Held {
    /// The image of a record that has not changed since it was read, else it is read now.
    pub(crate) fn share(&self, record: &Record, read: impl FnOnce() -> Option<Image>) -> Option<Arc<Image>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |image: &Arc<Image>| {
            let words = (&image.names, &image.digests) == (&record.names, &record.digests);
            words && (image.size, image.pinned) == (record.size, record.pins())
        };
        if let Some(image) = held.get(&record.id).and_then(Weak::upgrade).filter(same) {
            return Some(image);
        }
        let image = Arc::new(read()?);
        held.retain(|_, image| image.strong_count() > 0);
        held.insert(record.id.clone(), Arc::downgrade(&image));
        Some(image)
    }
}
