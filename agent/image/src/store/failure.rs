//! Errors of changes of the store.

use std::io;

use crate::content::unpack::UnpackError;
use crate::reference;

/// The store could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The image name is invalid.
    #[error("parse the image name")]
    Reference(#[source] reference::Invalid),
    /// A file operation failed.
    #[error("write to the image store")]
    Io(#[source] io::Error),
    /// A directory could not take the attributes of the layers below.
    #[error("finish a layer")]
    Layer(#[source] UnpackError),
    /// containerd returned an error or did not answer.
    #[error(transparent)]
    Containerd(#[from] agent_containerd::Error),
}
