//! Errors of volumes, with upstream's messages where users see them.

use std::io;
use std::path::{Path, PathBuf};

use agent_plan::container::environment::ReferenceError;

use crate::PayloadError;

/// A volume cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name is not a valid path component.
    #[error("{0:?} cannot be part of a path")]
    Name(String),
    /// A mount refers to a volume that the pod does not have.
    #[error("volume {0:?} not found in the pod")]
    Missing(String),
    /// This kind of volume is not supported.
    #[error("the kind of volume {0:?} is not supported")]
    Unsupported(String),
    /// An object to which the volume refers is missing or malformed.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {source}")]
    Payload {
        /// Name of the volume.
        volume: String,
        /// The cause.
        source: PayloadError,
    },
    /// A path on the node does not match the volume's type.
    #[error(
        "MountVolume.SetUp failed for volume \"{volume}\" : hostPath type check failed: {}",
        problem
    )]
    HostPath {
        /// Name of the volume.
        volume: String,
        /// Description of the mismatch.
        problem: String,
    },
    /// A volume cannot be set up for another reason.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {problem}")]
    SetUp {
        /// Name of the volume.
        volume: String,
        /// Error message with its causes.
        problem: String,
    },
    /// More than one volume cannot be set up.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
    /// The storage of a claim cannot be mounted. The message is upstream's.
    #[error("{problem}")]
    Claim {
        /// Error message.
        problem: String,
    },
    /// A `subPath` leads outside of its volume, or cannot be created.
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    SubPath {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
        /// Cause, which is not disclosed in the pod's status.
        cause: io::Error,
    },
    /// A `subPath` is invalid. The message is upstream's.
    #[error("{problem}")]
    NoSubPath {
        /// Error message.
        problem: String,
    },
    /// A `subPath` does not exist in an image volume.
    #[error("failed to mount subPath {path:?} of image volume \"{volume}\"")]
    ImagePath {
        /// Name of the volume.
        volume: String,
        /// The path.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// `subPathExpr` refers to an unknown variable.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A file operation failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// These steps of a tear-down failed; the others were completed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
}

impl Error {
    /// Adds the name of the volume to the error.
    pub(crate) fn of(self, volume: &str) -> Self {
        match self {
            Self::Payload { .. }
            | Self::HostPath { .. }
            | Self::Claim { .. }
            | Self::SetUp { .. }
            | Self::Several(_)
            | Self::SubPath { .. }
            | Self::NoSubPath { .. }
            | Self::ImagePath { .. }
            | Self::Missing(_)
            | Self::Incomplete(_) => self,
            Self::Name(_) | Self::Unsupported(_) | Self::Reference(_) | Self::Io { .. } => Self::SetUp {
                volume: volume.to_owned(),
                problem: match std::error::Error::source(&self) {
                    Some(cause) => format!("{self}: {cause}"),
                    None => self.to_string(),
                },
            },
        }
    }
}

pub(crate) fn io_error(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Error {
    Error::Io {
        doing,
        path: path.to_owned(),
        source: source.into(),
    }
}
