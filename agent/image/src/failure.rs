//! Why an image could not be pulled.

use crate::reference;
use crate::registry::RegistryError;
use crate::store::StoreError;

/// An image could not be pulled. The texts are containerd's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name is invalid.
    #[error("Failed to apply default image tag {name:?}: couldn't parse image name {name:?}")]
    Name {
        /// The name as it was given.
        name: String,
        /// What is wrong with it.
        source: reference::Invalid,
    },
    /// The registry did not say what the name stands for.
    #[error("failed to pull and unpack image {image:?}: failed to resolve reference {image:?}")]
    Resolve {
        /// The full name.
        image: String,
        /// Why.
        source: RegistryError,
    },
    /// Something of the image could not be had, or is not what it should be.
    #[error("failed to pull and unpack image {image:?}")]
    Fetch {
        /// The full name.
        image: String,
        /// Why.
        source: RegistryError,
    },
    /// The store refused.
    #[error("failed to pull and unpack image {image:?}")]
    Store {
        /// The full name.
        image: String,
        /// Why.
        source: StoreError,
    },
    /// It took too long.
    #[error("failed to pull and unpack image {image:?}: not complete after {seconds} s")]
    Deadline {
        /// The full name.
        image: String,
        /// The bound in seconds.
        seconds: u64,
    },
}

impl PullError {
    /// The reason of a container that waits because of this: `ErrImagePull` or `InvalidImageName`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name { .. } => "InvalidImageName",
            Self::Resolve { .. } | Self::Fetch { .. } | Self::Store { .. } | Self::Deadline { .. } => "ErrImagePull",
        }
    }

    /// The text, sources included, as far as a pod's status has room for it: parts of it are a registry's.
    pub fn message(&self) -> String {
        const LONGEST: usize = 4096;
        let mut text = crate::chain(self);
        text.truncate(text.floor_char_boundary(LONGEST));
        text
    }
}
