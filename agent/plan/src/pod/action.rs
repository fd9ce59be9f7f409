//! Actions of a pod's worker.

use crate::Timestamp;
use crate::pod::probe::Kind;

/// An action that the worker takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Prepare the sandbox: volumes, network, supervisor.
    Prepare,
    /// Ensure that the container's image is present, by its pull policy.
    EnsureImage(String),
    /// Create and start the container.
    Run {
        /// Its name.
        container: String,
        /// The number of the instance.
        attempt: u32,
    },
    /// Run a probe once.
    Probe {
        /// The container's name.
        container: String,
        /// Kind of the probe.
        kind: Kind,
    },
    /// Stop the running instance.
    Stop {
        /// The container's name.
        container: String,
        /// The reason.
        why: Why,
        /// Seconds until SIGKILL.
        grace: i64,
    },
    /// Begin to stop a sidecar before its turn: its preStop hook runs, the signal waits.
    Announce {
        /// The container's name.
        container: String,
        /// Seconds until SIGKILL.
        grace: i64,
    },
    /// Send a sidecar the stop signal: the containers before it have stopped and its hook is over.
    Turn(String),
    /// Send the stop signal now, even if the preStop hook has not ended.
    Signal(String),
    /// Send SIGKILL.
    Kill(String),
    /// Shorten the grace period of a container that is being stopped.
    Hasten {
        /// The container's name.
        container: String,
        /// The new deadline.
        deadline: Timestamp,
    },
    /// Remove an instance older than the previous one.
    Remove {
        /// The container's name.
        container: String,
        /// The instance's identifier.
        id: String,
    },
    /// All containers have exited because of a restart rule: start all of them again.
    Reset,
    /// Remove sandbox, network and volumes.
    TearDown,
    /// Delete the pod from the API: nothing is left of it on the node.
    Finish,
}

/// Reason for which a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The pod terminates.
    Pod,
    /// The liveness probe failed.
    Liveness,
    /// The startup probe failed.
    Startup,
    /// The postStart hook failed.
    PostStart,
    /// Its resources change, and its resize policy asks for a restart.
    Resize,
    /// The pod's spec has another image than the running instance.
    Image,
    /// A container's exit matched a rule that restarts all containers.
    Rule,
}

/// The next actions, and the time of the next evaluation if nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order; all of them may be started concurrently.
    pub actions: Vec<Action>,
    /// The earliest time at which the plan changes by itself.
    pub wake: Option<Timestamp>,
}

impl Plan {
    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

impl Why {
    /// Message of the `Killing` event; `again` tells whether the container is restarted after a
    /// failed probe.
    pub fn told(self, container: &str, again: bool) -> String {
        let then = if again { ", will be restarted" } else { "" };
        match self {
            Self::Pod => format!("Stopping container {container}"),
            Self::Liveness => format!("Container {container} failed liveness probe{then}"),
            Self::Startup => format!("Container {container} failed startup probe{then}"),
            Self::PostStart => "FailedPostStartHook".to_owned(),
            Self::Resize => format!("Container {container} resize requires restart"),
            Self::Image => format!("Container {container} definition changed, will be restarted"),
            Self::Rule => format!("Container {container} is restarted with all others, as a restart rule says"),
        }
    }
}
