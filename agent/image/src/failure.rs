//! Errors of image pulls.

use crate::reference;
use crate::registry::failure::RegistryError;
use crate::store::failure::StoreError;

/// An image could not be pulled. The messages are containerd's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The image name is invalid.
    #[error("Failed to apply default image tag {name:?}: couldn't parse image name {name:?}")]
    Name {
        /// Image name as given.
        name: String,
        /// Reason why the name is invalid.
        source: reference::Invalid,
    },
    /// The name could not be resolved to a manifest.
    #[error("failed to pull and unpack image {image:?}: failed to resolve reference {image:?}")]
    Resolve {
        /// Full image name.
        image: String,
        /// Error of the registry.
        source: RegistryError,
    },
    /// A blob of the image could not be fetched, or does not match its descriptor.
    #[error("failed to pull and unpack image {image:?}")]
    Fetch {
        /// Full image name.
        image: String,
        /// Error of the registry.
        source: RegistryError,
    },
    /// The store returned an error.
    #[error("failed to pull and unpack image {image:?}")]
    Store {
        /// Full image name.
        image: String,
        /// Error of the store.
        source: StoreError,
    },
    /// The pull timed out.
    #[error("failed to pull and unpack image {image:?}: not complete after {seconds} s")]
    Deadline {
        /// Full image name.
        image: String,
        /// Timeout in seconds.
        seconds: u64,
    },
}

impl PullError {
    /// Waiting reason of a container with this error: `ErrImagePull` or `InvalidImageName`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name { .. } => "InvalidImageName",
            Self::Resolve { .. } | Self::Fetch { .. } | Self::Store { .. } | Self::Deadline { .. } => "ErrImagePull",
        }
    }

    /// Message with its sources, truncated for a pod's status: parts of it come from the registry.
    pub fn message(&self) -> String {
        const LONGEST: usize = 4096;
        let mut text = crate::chain(self);
        text.truncate(text.floor_char_boundary(LONGEST));
        text
    }
}
