//! One image of the node.

use std::path::PathBuf;

use oci_spec::image::ImageConfiguration;

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
