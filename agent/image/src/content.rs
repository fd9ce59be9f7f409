//! What can be wrong with content that came from outside.

use crate::digest::Digest;
use crate::unpack::UnpackError;

/// Content of an image that is not what it says it is, or more than the configured bounds allow.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The bytes have another digest than the one they were asked for by.
    #[error("{what}: digest is {actual}, expected {expected}")]
    Digest {
        /// What was read: `layer`, `manifest`, …
        what: &'static str,
        /// The digest of the bytes.
        actual: Digest,
        /// The digest in the descriptor.
        expected: Digest,
    },
    /// The bytes are more or fewer than the descriptor says.
    #[error("{what}: size is {actual} bytes, expected {expected}")]
    Size {
        /// What was read.
        what: &'static str,
        /// Bytes read.
        actual: u64,
        /// Bytes in the descriptor.
        expected: u64,
    },
    /// More bytes than the bound.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// What was read.
        what: &'static str,
        /// The bound in bytes.
        limit: u64,
    },
    /// A document is not what its media type promises.
    #[error("parse the {what}")]
    Parse {
        /// What was read.
        what: &'static str,
        /// Where it went wrong.
        source: serde_json::Error,
    },
    /// A digest in a document is none.
    #[error("a digest in the {what}")]
    InvalidDigest {
        /// The document.
        what: &'static str,
        /// What is wrong with it.
        source: crate::digest::InvalidDigest,
    },
    /// Neither OCI nor Docker schema 2.
    #[error("unsupported media type {media_type:?} of the {what}")]
    MediaType {
        /// What has the media type.
        what: &'static str,
        /// The media type, cut to a readable length.
        media_type: String,
    },
    /// The index has nothing for this machine.
    #[error("no match for platform in manifest: not found")]
    Platform,
    /// Indexes refer to each other too deeply, or in a circle.
    #[error("indexes are nested more than {0} deep")]
    Nesting(usize),
    /// The configuration has another number of layers than the manifest.
    #[error("mismatched image rootfs and manifest layers")]
    LayerCount,
    /// More layers than the bound.
    #[error("{actual} layers are more than {limit}")]
    TooManyLayers {
        /// Layers of the manifest.
        actual: usize,
        /// The bound.
        limit: usize,
    },
    /// A layer could not be unpacked.
    #[error("unpack layer {layer}")]
    Unpack {
        /// Digest of the layer as transferred, or its name in the archive.
        layer: String,
        /// Why.
        source: UnpackError,
    },
    /// The archive is compressed in a way that is not undone here.
    #[error(
        "the archive is compressed by {0}, which is not supported: decompress it first (`{0} -dc FILE | skiff image import -`)"
    )]
    Compression(&'static str),
    /// The archive lacks something that it refers to.
    #[error("{0} is missing in the archive")]
    Missing(String),
    /// Reading or writing failed on this node.
    #[error("{what}")]
    Io {
        /// What was done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl ContentError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
