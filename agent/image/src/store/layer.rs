//! A layer that is being added to the store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest::{Descriptor, GZIP_LAYER, PLAIN_LAYER};
use crate::content::unpack::Unpacked;
use crate::store::failure::StoreError;

/// Compressed layer: a range of a file.
#[derive(Debug)]
pub(crate) struct Blob {
    file: File,
    offset: u64,
    left: u64,
}

impl Blob {
    pub(crate) fn new(file: File, offset: u64, size: u64) -> Self {
        Self {
            file,
            offset,
            left: size,
        }
    }

    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self::new(self.file.try_clone()?, self.offset, self.left))
    }
}

impl io::Read for Blob {
    /// Positional reads: other threads may read from the same file.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self
            .file
            .read_at(buffer.get_mut(..most).unwrap_or_default(), self.offset)?;
        self.offset = self.offset.saturating_add(read as u64);
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}

/// Expected properties of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Name of the layer in errors.
    pub(crate) name: String,
    /// Descriptor of the compressed layer, if its source has one.
    pub(crate) descriptor: Option<Descriptor>,
    /// Digest of the uncompressed stream.
    pub(crate) diff_id: Digest,
    /// Chain IDs of the layers below, followed by its own.
    pub(crate) chains: Vec<Digest>,
}

impl Wanted {
    pub(crate) fn chain(&self) -> Option<&Digest> {
        self.chains.last()
    }

    /// Descriptor of the layer that was read; docker-save archives have none.
    pub(crate) fn described(&self, read: &Unpacked) -> Descriptor {
        self.descriptor.clone().unwrap_or_else(|| {
            let media_type = if read.digest == read.diff_id {
                PLAIN_LAYER
            } else {
                GZIP_LAYER
            };
            Descriptor::new(media_type, read.digest.clone(), read.size)
        })
    }

    /// Checks size and digests of the layer that was read, before the layer is used.
    pub(crate) fn check(&self, read: &Unpacked) -> Result<(), ContentError> {
        if let Some(expected) = &self.descriptor {
            if read.size != expected.size {
                return Err(ContentError::Size {
                    what: "layer",
                    actual: read.size,
                    expected: expected.size,
                });
            }
            if read.digest != expected.digest {
                let (actual, expected) = (read.digest.clone(), expected.digest.clone());
                return Err(ContentError::Digest {
                    what: "layer",
                    actual,
                    expected,
                });
            }
        }
        if read.diff_id == self.diff_id {
            return Ok(());
        }
        let (actual, expected) = (read.diff_id.clone(), self.diff_id.clone());
        Err(ContentError::Digest {
            what: "layer content",
            actual,
            expected,
        })
    }
}

/// State of a layer in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Have {
    /// Neither its blob nor its directory exists.
    Nothing,
    /// Its blob exists, but it is not unpacked.
    Blob,
    /// The layer is complete.
    Layer,
}

/// Verified layer that is not in its final place yet.
pub(crate) struct Staged {
    pub(crate) wanted: Wanted,
    /// Size and digest of the compressed layer.
    pub(crate) descriptor: Descriptor,
    /// Directory into which it was unpacked, unless containerd unpacks it, and the implied
    /// directories that take their attributes from the layers below.
    pub(crate) unpacked: Option<(TempDir, Vec<PathBuf>)>,
}

/// Documents from which an image was parsed.
#[derive(Default)]
pub(crate) struct Documents {
    /// Indexes and manifest, outermost first. Empty if the source has none.
    pub(crate) manifests: Vec<Vec<u8>>,
    /// Descriptors of the compressed layers.
    pub(crate) layers: Vec<Descriptor>,
}

/// A layer could not be added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ContentError> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| ContentError::io("unpack a layer")(io::Error::other(error)))
}
