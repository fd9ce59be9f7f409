//! Content from registries and archives: its parts, and the errors in it.
//!
//! * [`digest`], [`manifest`]: digests, and manifests and indexes
//! * [`archive`]: members of an image archive
//! * [`unpack`], [`pack`]: a layer's tar stream to a directory, and back

pub(crate) mod archive;
pub(crate) mod digest;
pub(crate) mod manifest;
pub(crate) mod pack;
pub(crate) mod unpack;

use digest::Digest;
use unpack::UnpackError;

/// Content of an image does not match its descriptor, or exceeds a configured limit.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The digest of the bytes differs from the requested one.
    #[error("{what}: digest is {actual}, expected {expected}")]
    Digest {
        /// Kind of content: `layer`, `manifest`, …
        what: &'static str,
        /// Digest of the bytes.
        actual: Digest,
        /// Digest in the descriptor.
        expected: Digest,
    },
    /// The size differs from the descriptor's.
    #[error("{what}: size is {actual} bytes, expected {expected}")]
    Size {
        /// Kind of content.
        what: &'static str,
        /// Bytes read.
        actual: u64,
        /// Size in the descriptor.
        expected: u64,
    },
    /// The content is larger than the limit.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// Kind of content.
        what: &'static str,
        /// Limit in bytes.
        limit: u64,
    },
    /// A document does not match its media type.
    #[error("parse the {what}")]
    Parse {
        /// Kind of document.
        what: &'static str,
        /// Parse error with its position.
        source: serde_json::Error,
    },
    /// A document holds an invalid digest.
    #[error("a digest in the {what}")]
    InvalidDigest {
        /// Kind of document.
        what: &'static str,
        /// Parse error of the digest.
        source: digest::InvalidDigest,
    },
    /// The media type is neither OCI nor Docker schema 2.
    #[error("unsupported media type {media_type:?} of the {what}")]
    MediaType {
        /// Kind of content with this media type.
        what: &'static str,
        /// Media type, truncated to a readable length.
        media_type: String,
    },
    /// The index has no manifest for this platform.
    #[error("no match for platform in manifest: not found")]
    Platform,
    /// Indexes are nested too deeply, or in a cycle.
    #[error("indexes are nested more than {0} deep")]
    Nesting(usize),
    /// The number of layers differs between configuration and manifest.
    #[error("mismatched image rootfs and manifest layers")]
    LayerCount,
    /// The image has more layers than the limit.
    #[error("{actual} layers are more than {limit}")]
    TooManyLayers {
        /// Layers of the manifest.
        actual: usize,
        /// Maximum number of layers.
        limit: usize,
    },
    /// A layer could not be unpacked.
    #[error("unpack layer {layer}")]
    Unpack {
        /// Digest of the compressed layer, or its name in the archive.
        layer: String,
        /// Error of the unpacker.
        source: UnpackError,
    },
    /// The archive's compression format is not supported.
    #[error(
        "the archive is compressed by {0}, which is not supported: decompress it first (`{0} -dc FILE | skiff image import -`)"
    )]
    Compression(&'static str),
    /// The archive lacks a member that it refers to.
    #[error("{0} is missing in the archive")]
    Missing(String),
    /// A file operation failed.
    #[error("{what}")]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl ContentError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
