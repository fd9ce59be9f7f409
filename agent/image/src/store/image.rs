//! An image of the node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oci_spec::image::ImageConfiguration;

use crate::store::index::Record;

/// Complete image on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the configuration: `sha256:…`.
    pub id: String,
    /// Full names, `docker.io/library/nginx:1.14.2`. Empty for an image that was pulled by digest
    /// alone.
    pub names: Vec<String>,
    /// Full names with the digest of the index or manifest that was pulled by them:
    /// `docker.io/library/nginx@sha256:…`. Empty for images from docker-save archives, which have
    /// none.
    pub digests: Vec<String>,
    /// Bytes of the configuration and of the compressed layers.
    pub size: u64,
    /// The configuration: environment, command, user, …
    pub config: ImageConfiguration,
    /// Directories of the layers, lowest first, as overlayfs lower layers: whiteouts are character
    /// devices 0/0, opaque directories have `trusted.overlay.opaque`. Empty if containerd keeps the
    /// image.
    pub layers: Vec<PathBuf>,
    /// Name of containerd's committed snapshot, if containerd keeps the image.
    pub snapshot: Option<String>,
    /// True for an imported image: while it has a name it is not garbage-collected, since no
    /// registry may have it.
    pub pinned: bool,
}

impl Image {
    /// `imageID` of a container's status: the name with digest if there is one, else the id.
    pub fn image_id(&self) -> &str {
        self.digests.first().unwrap_or(&self.id)
    }

    /// Image as served on the node's private socket: id, names, digests, size in bytes.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "id": self.id, "names": self.names, "digests": self.digests, "size": self.size })
    }
}

/// Images in use, by id. Pods with the same image share one instance, which is freed with the last
/// of them.
#[derive(Default)]
pub(crate) struct Held(Mutex<BTreeMap<String, Weak<Image>>>);

impl Held {
    /// Returns the image of a record, read again only if the record has changed.
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
