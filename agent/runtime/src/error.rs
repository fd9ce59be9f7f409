//! Failures, by what a caller can do about them.

use std::path::PathBuf;

use agent_containerd::Meaning;
use serde::{Deserialize, Serialize};

use crate::{Container, State};

/// Why a container was not made and run.
#[derive(Debug)]
pub enum NotRun {
    /// It could not be made, and there is nothing of it.
    Made(Error),
    /// It is there, and could not be started.
    Started(Error),
}

/// Why a runtime could not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id or path that the runtime does not take.
    #[error("invalid {what}: {value:?}")]
    Invalid {
        /// What it was to be.
        what: &'static str,
        /// What was given.
        value: String,
    },
    /// The root of the control groups is another's.
    #[error("control group {group} belongs to {}; choose another one", owner.display())]
    GroupTaken {
        /// Its path.
        group: String,
        /// The state directory of the agent that has it, or words for one that nobody knows.
        owner: PathBuf,
    },
    /// There is no such sandbox.
    #[error("sandbox {0} not found")]
    SandboxNotFound(String),
    /// There is one of that id.
    #[error("sandbox {0} exists already")]
    SandboxExists(String),
    /// It was not made: it has no network.
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
        /// What it was asked to do.
        doing: &'static str,
        /// Its answer.
        #[source]
        source: crate::ContainerdFailure,
    },
    /// A file, socket or kernel call of the agent's side failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// A tear-down went to its end, and these steps of it failed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
}

impl Error {
    /// Whether what this was about is not there any more.
    pub fn is_end(&self) -> bool {
        if let Self::Containerd { source, .. } = self {
            return matches!(source.meaning(), Meaning::NotFound | Meaning::WrongState);
        }
        self.is_loss()
    }

    /// Whether what this was about went away meanwhile, with who would have done it, or nobody could tell what became of it. It is
    /// no failure of the container's own.
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

/// What a supervisor answers when it could not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such container.
    #[error("container {0} not found")]
    ContainerNotFound(String),
    /// There is one of that id.
    #[error("container {0} exists already")]
    ContainerExists(String),
    /// The container is not in the state that this needs.
    #[error("container {id} is {state}")]
    WrongState {
        /// The container.
        id: String,
        /// What it is: `created`, `running` or `exited`.
        state: String,
    },
    /// `runAsNonRoot` and the user is root.
    #[error("container has runAsNonRoot and image will run as root")]
    RunsAsRoot,
    /// The image's or the pod's user cannot be resolved.
    #[error("user {user:?}: {reason}")]
    User {
        /// As given.
        user: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The container is whole, but its program cannot be executed.
    #[error("unable to start container process: {0}")]
    Program(String),
    /// Everything else, with its chain of causes.
    #[error("{doing}: {cause}")]
    Failed {
        /// What was being done.
        doing: String,
        /// The chain of causes.
        cause: String,
    },
}

impl Refusal {
    /// What is asked of a container is not for the state that it is in.
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

    /// A failure with the whole chain of its causes.
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
