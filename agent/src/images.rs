//! Sources of images: the node's image store, or in tests one in which every image exists.

pub(crate) mod credentials;

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use image::{Credentials, Image, Images, Pulled};

/// Annotation of a container's record with the ID of its image.
pub(crate) const ID: &str = "skiff/image";

/// Annotation with the IDs of the images that a container mounts, separated by commas.
pub(crate) const SHOWN: &str = "skiff/volume-images";

/// Failure to provide an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Reason such as `ErrImagePull` or `InvalidImageName`.
    pub reason: String,
    /// The cause.
    pub message: String,
}

/// Truncates an image's name, or a text that contains it, for logs and messages: names may have any
/// length.
pub(crate) fn shown(name: &str) -> &str {
    const LONGEST: usize = 1024;
    name.get(..name.floor_char_boundary(LONGEST)).unwrap_or(name)
}

/// Image store, as the agent uses it.
pub trait Source: Send + Sync + 'static {
    /// Returns the image if it is complete on this node.
    fn resolve(&self, name: &str) -> Result<Option<Arc<Image>>, Failure>;

    /// Pulls the image, with each of the credentials and then without.
    fn pull<'a>(&'a self, name: &'a str, credentials: &'a [Credentials]) -> BoxFuture<'a, Result<Pulled, Failure>>;

    /// Returns all images.
    fn list(&self) -> Vec<Arc<Image>>;

    /// Removes an unused image by its ID, with layers that no other image has; returns the bytes
    /// that were freed.
    fn discard<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Failure>>;

    /// Directory of the images; `None` if there is none.
    fn directory(&self) -> Option<&Path>;
}

impl Source for Images {
    fn resolve(&self, name: &str) -> Result<Option<Arc<Image>>, Failure> {
        Self::resolve(self, name).map_err(|error| {
            let (name, error) = (shown(name), error.to_string());
            let error = shown(&error);
            Failure {
                reason: "InvalidImageName".to_owned(),
                message: format!(
                    "Failed to apply default image tag {name:?}: couldn't parse image name {name:?}: {error}"
                ),
            }
        })
    }

    fn pull<'a>(&'a self, name: &'a str, credentials: &'a [Credentials]) -> BoxFuture<'a, Result<Pulled, Failure>> {
        async move {
            let pulled = Self::fetch(self, name, credentials).await;
            pulled.map_err(|error| Failure {
                reason: error.reason().to_owned(),
                message: error.message(),
            })
        }
        .boxed()
    }

    fn list(&self) -> Vec<Arc<Image>> {
        Self::list(self)
    }

    fn discard<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Failure>> {
        async move {
            let discarded = Self::discard(self, id).await;
            discarded.map_err(|error| Failure {
                reason: "ImageGCFailed".to_owned(),
                message: image::chain(&error),
            })
        }
        .boxed()
    }

    fn directory(&self) -> Option<&Path> {
        Some(Self::directory(self))
    }
}

/// Image store in which every image exists and is empty.
#[derive(Debug, Default)]
pub struct Sim;

impl Source for Sim {
    fn resolve(&self, name: &str) -> Result<Option<Arc<Image>>, Failure> {
        let configuration = serde_json::json!({
            "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
            "config": {"Cmd": ["/bin/true"]},
        });
        let config = serde_json::from_value(configuration).map_err(|error| Failure {
            reason: "ImageInspectError".to_owned(),
            message: error.to_string(),
        })?;
        Ok(Some(Arc::new(Image {
            id: format!("sha256:{:064x}", 1),
            names: vec![name.to_owned()],
            digests: Vec::new(),
            size: 0,
            config,
            layers: vec!["/".into()],
            snapshot: None,
            pinned: false,
        })))
    }

    fn pull<'a>(&'a self, name: &'a str, _: &'a [Credentials]) -> BoxFuture<'a, Result<Pulled, Failure>> {
        async move {
            let image = self.resolve(name)?.ok_or_else(|| Failure {
                reason: "ErrImagePull".to_owned(),
                message: String::new(),
            })?;
            Ok(Pulled { image, opened_by: None })
        }
        .boxed()
    }

    fn list(&self) -> Vec<Arc<Image>> {
        Vec::new()
    }

    fn discard<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<u64, Failure>> {
        std::future::ready(Ok(0)).boxed()
    }

    fn directory(&self) -> Option<&Path> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_of_any_length_is_refused_in_few_words() {
        let directory = tempfile::tempdir().unwrap();
        let images = Images::open(directory.path(), image::Config::default()).unwrap();
        let name = "A".repeat(1 << 20);
        let failure = Source::resolve(&images, &name).unwrap_err();
        assert_eq!(failure.reason, "InvalidImageName");
        assert!(failure.message.len() < 4096, "{} bytes", failure.message.len());
    }
}
