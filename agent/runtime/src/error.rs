//! Errors, classified by the caller's possible reactions.

use std::io;
use std::path::{Path, PathBuf};

use agent_containerd::{Failure, Meaning};
use serde::{Deserialize, Serialize};

use crate::{Container, State};

/// Failure to create and start a container.
#[derive(Debug)]
pub enum NotRun {
    /// The creation failed and left nothing.
    Made(Error),
    /// The container was created, but the start failed.
    Started(Error),
}

/// Failure of a runtime's operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An ID or path is not valid.
    #[error("invalid {what}: {value:?}")]
    Invalid {
        /// The kind of value, such as `container id`.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// The root cgroup belongs to another agent.
    #[error("control group {group} belongs to {}; choose another one", owner.display())]
    GroupTaken {
        /// Path of the cgroup.
        group: String,
        /// State directory of the agent that owns it, or a text if the owner is not known.
        owner: PathBuf,
    },
    /// The sandbox does not exist.
    #[error("sandbox {0} not found")]
    SandboxNotFound(String),
    /// A sandbox with this ID exists already.
    #[error("sandbox {0} exists already")]
    SandboxExists(String),
    /// The sandbox was not created: its network failed.
    #[error("sandbox {0} was not connected")]
    Unconnected(String),
    /// The sandbox's supervisor is gone.
    #[error("the supervisor of sandbox {0} is gone")]
    SandboxLost(String),
    /// `runAsNonRoot` and the user is root.
    #[error("container has runAsNonRoot and image will run as root")]
    RunsAsRoot,
    /// The supervisor refused or failed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// containerd refused, failed or did not answer.
    #[error("{doing}")]
    Containerd {
        /// The operation.
        doing: &'static str,
        /// Response of containerd.
        #[source]
        source: Failure,
    },
    /// A file, socket or kernel call of the agent failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Path of the object.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A removal was completed, but these steps of it failed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
}

impl Error {
    /// True if the sandbox or container no longer exists.
    pub fn is_end(&self) -> bool {
        if let Self::Containerd { source, .. } = self {
            return matches!(source.meaning(), Meaning::NotFound | Meaning::WrongState);
        }
        self.is_loss()
    }

    /// True if the sandbox or container disappeared meanwhile, with its supervisor, or its fate is
    /// unknown. This is no failure of the container's own.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::SandboxNotFound(_) | Self::SandboxLost(_) => true,
            Self::Refused(refusal) => match refusal {
                Refusal::ContainerNotFound(_) | Refusal::WrongState { .. } => true,
                Refusal::ContainerExists(_)
                | Refusal::RunsAsRoot
                | Refusal::User { .. }
                | Refusal::Program(_)
                | Refusal::Failed { .. } => false,
            },
            Self::Containerd { source, .. } => matches!(source.meaning(), Meaning::NotFound | Meaning::Silent),
            Self::Invalid { .. }
            | Self::GroupTaken { .. }
            | Self::SandboxExists(_)
            | Self::Unconnected(_)
            | Self::RunsAsRoot
            | Self::Io { .. }
            | Self::Incomplete(_) => false,
        }
    }
}

/// Error that a supervisor returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The container does not exist.
    #[error("container {0} not found")]
    ContainerNotFound(String),
    /// A container with this ID exists already.
    #[error("container {0} exists already")]
    ContainerExists(String),
    /// The container's state does not allow the operation.
    #[error("container {id} is {state}")]
    WrongState {
        /// ID of the container.
        id: String,
        /// Its state: `created`, `running` or `exited`.
        state: String,
    },
    /// `runAsNonRoot` and the user is root.
    #[error("container has runAsNonRoot and image will run as root")]
    RunsAsRoot,
    /// The image's or the pod's user cannot be resolved.
    #[error("user {user:?}: {reason}")]
    User {
        /// The user of the specification.
        user: String,
        /// The cause.
        reason: String,
    },
    /// The container exists, but its program cannot be executed.
    #[error("unable to start container process: {0}")]
    Program(String),
    /// Any other failure, with its chain of causes.
    #[error("{doing}: {cause}")]
    Failed {
        /// The operation.
        doing: String,
        /// Chain of causes.
        cause: String,
    },
}

impl Refusal {
    /// The operation does not fit the container's state.
    pub(crate) fn wrong_state(container: &Container) -> Self {
        let state = match container.state {
            State::Created => "created",
            State::Running { .. } => "running",
            State::Exited { .. } => "exited",
        };
        Self::WrongState {
            id: container.id.clone(),
            state: state.to_owned(),
        }
    }

    /// Wraps an error with the whole chain of its causes.
    pub fn failed(doing: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let mut cause = error.to_string();
        let mut next = error.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !cause.ends_with(&text) {
                cause.push_str(": ");
                cause.push_str(&text);
            }
            next = error.source();
        }
        Self::Failed {
            doing: doing.into(),
            cause,
        }
    }
}

/// Reports the failures of a removal that went on past them.
pub(crate) fn finish(failures: Vec<String>) -> Result<(), Error> {
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Error::Incomplete(failures))
    }
}

/// Makes an [`Error`] of an I/O error at a path.
pub(crate) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { doing, path, source }
}
