//! Failures, in upstream's frame where people are told of them.

use std::io;
use std::path::{Path, PathBuf};

use agent_plan::environment::ReferenceError;

use crate::PayloadError;

/// A volume that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that cannot be part of a path.
    #[error("{0:?} cannot be part of a path")]
    Name(String),
    /// A mount names a volume that the pod does not have.
    #[error("volume {0:?} not found in the pod")]
    Missing(String),
    /// This kind of volume is not supported.
    #[error("the kind of volume {0:?} is not supported")]
    Unsupported(String),
    /// What the volume refers to is missing or malformed. `volume` is its name.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {source}")]
    Payload {
        /// The volume.
        volume: String,
        /// The cause.
        source: PayloadError,
    },
    /// A path on the node is not what the volume says it is.
    #[error(
        "MountVolume.SetUp failed for volume \"{volume}\" : hostPath type check failed: {}",
        problem
    )]
    HostPath {
        /// The volume.
        volume: String,
        /// What is wrong.
        problem: String,
    },
    /// A volume cannot be made for another reason.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {problem}")]
    SetUp {
        /// The volume.
        volume: String,
        /// What is wrong, with its causes.
        problem: String,
    },
    /// More than one volume cannot be had.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
    /// What is behind a claim cannot be mounted. The text is upstream's.
    #[error("{problem}")]
    Claim {
        /// What is wrong.
        problem: String,
    },
    /// A `subPath` leads outside of its volume, or cannot be made.
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    SubPath {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// Why, which nobody is told who may only read what the pod says.
        cause: io::Error,
    },
    /// A `subPath` that is none, in upstream's words.
    #[error("{problem}")]
    NoSubPath {
        /// What is wrong.
        problem: String,
    },
    /// A `subPath` is not in the image that a volume is.
    #[error("failed to mount subPath {path:?} of image volume \"{volume}\"")]
    ImagePath {
        /// The volume.
        volume: String,
        /// The path.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// `subPathExpr` refers to something unknown.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A file operation failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A tear-down went to its end, and these steps of it failed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
}

impl Error {
    /// The same, saying of which volume it is.
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
