//! A layer on its way into the store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::containerd::Lease;
use crate::content::ContentError;
use crate::digest::Digest;
use crate::manifest::Descriptor;
use crate::own::Pins;
use crate::store::StoreError;
use crate::unpack::Unpacked;

/// A layer as it was transferred: a part of a file.
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
    /// Others may read from the same file meanwhile.
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

/// What a layer must be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// What failures call it.
    pub(crate) name: String,
    /// Its bytes as they were transferred, where its source says so.
    pub(crate) descriptor: Option<Descriptor>,
    /// Digest of its uncompressed stream.
    pub(crate) diff_id: Digest,
    /// Its chain ID, after those of the layers below.
    pub(crate) chains: Vec<Digest>,
}

impl Wanted {
    pub(crate) fn chain(&self) -> Option<&Digest> {
        self.chains.last()
    }

    /// Checks what was read against the digests that it was asked for by. It is not in use yet.
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

/// What the store has of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Have {
    /// Nothing.
    Nothing,
    /// Its bytes; they are not unpacked.
    Blob,
    /// All that is needed.
    Layer,
}

/// A layer that is verified, and not in its place yet.
pub(crate) struct Staged {
    pub(crate) wanted: Wanted,
    /// As it was transferred.
    pub(crate) descriptor: Descriptor,
    /// Where it is unpacked, unless somebody else does that; and the directories that take over what is below them.
    pub(crate) unpacked: Option<(TempDir, Vec<PathBuf>)>,
}

/// Keeps what was added to the store until an image refers to it.
pub(crate) enum Hold {
    /// Layers of our own.
    Own(Pins),
    /// containerd keeps it.
    Lease(Lease),
}

/// What an image was read from.
#[derive(Default)]
pub(crate) struct Documents {
    /// Index, manifest; the outermost first. None where the source has none.
    pub(crate) manifests: Vec<Vec<u8>>,
    /// As they were transferred.
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
