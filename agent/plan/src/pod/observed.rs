//! The agent's knowledge about a pod besides its specification.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ContainerUser;

use crate::Timestamp;
use crate::pod::probe::Probe;
use crate::pod::resize::{Pending, Progress, Resources};
use crate::pod::restart::BackOff;
use crate::pod::termination::{Rejection, Termination};

/// Input of [`crate::pod::lifecycle::decide`] and [`crate::pod::status::build`] besides the pod.
#[derive(Clone, Debug)]
pub struct View {
    /// Time at which the agent acknowledged the pod: `status.startTime`.
    pub start_time: Timestamp,
    /// The node's addresses, the primary one first.
    pub host_addresses: Vec<IpAddr>,
    /// Rejection by admission.
    pub rejection: Option<Rejection>,
    /// Termination by the agent, such as an eviction.
    pub termination: Option<Termination>,
    /// The pod's sandbox: network namespace, address and volumes.
    pub sandbox: Sandbox,
    /// The addresses of the sandbox that was removed or is about to be, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// All known instances of all containers, oldest first.
    pub instances: BTreeMap<String, Vec<Instance>>,
    /// Users of the containers' first processes at their start, by the instances' ids.
    pub users: BTreeMap<String, ContainerUser>,
    /// Resources allocated to the containers.
    pub allocated: Resources,
    /// Actual resources of the running containers.
    pub actual: Resources,
    /// The resize that waits for its allocation.
    pub resize_pending: Option<Pending>,
    /// Progress of a resize whose allocation is not yet actuated.
    pub resize_progress: Option<Progress>,
    /// State per container. Boxed: a map keeps room for eleven where a pod has one or two.
    pub memory: BTreeMap<String, Box<Memory>>,
    /// Time at which the pod's termination stopped its first container.
    pub winding_down: Option<Timestamp>,
    /// True once the API has the final status.
    pub final_status_stored: bool,
}

/// State of the pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Not created yet, or lost.
    Absent,
    /// It is being created.
    Preparing,
    /// Its creation failed; tried again at `until`.
    Failed {
        /// Time of the next try.
        until: Timestamp,
        /// Number of failures in a row.
        failures: u32,
    },
    /// Containers can be started in it.
    Ready {
        /// The pod's addresses, the primary one first.
        addresses: Vec<IpAddr>,
    },
    /// It is being removed.
    Removing,
    /// It was removed and will not be created again.
    Removed,
}

/// An instance of a container: one run of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The runtime's identifier, without a scheme.
    pub id: String,
    /// Counts from 0; the status shows it as `restartCount`.
    pub attempt: u32,
    /// The image in the pod's spec.
    pub image: String,
    /// The resolved image: `repository@sha256:…`, or the bare digest of its configuration.
    pub image_id: String,
    /// The state.
    pub state: State,
    /// It was lost with its sandbox: init containers run again in the next one.
    pub lost: bool,
    /// It ended in a restart of all containers: they run again whatever their policies.
    pub reset: bool,
}

/// State of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its process does not run yet.
    Created,
    /// Its process runs.
    Running {
        /// Start time.
        since: Timestamp,
    },
    /// Its process has exited, or could not be started.
    Exited(Exit),
}

/// End of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + n when signal n ended it.
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, …
    pub reason: String,
    /// The termination message or the cause.
    pub message: String,
    /// Start time, if it ever started.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Timestamp,
}

impl Instance {
    /// True if its process may still exist.
    pub fn is_alive(&self) -> bool {
        match self.state {
            State::Created | State::Running { .. } => true,
            State::Exited(_) => false,
        }
    }

    /// The instance's end, if it has exited.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            State::Created | State::Running { .. } => None,
        }
    }
}

/// State of a container beyond its instances. Losing it with the agent does no harm.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own; none rules out another"
)]
pub struct Memory {
    /// Its image.
    pub image: Image,
    /// The instance is being created and started.
    pub starting: bool,
    /// Failure to create it; tried again later.
    pub failure: Option<Failure>,
    /// Its restart back-off.
    pub back_off: BackOff,
    /// The running instance is being replaced because its resources change.
    pub renewal: bool,
    /// The instance was stopped because a probe failed, and is restarted whatever its exit code.
    pub revival: bool,
    /// The running instance is being stopped.
    pub stopping: Option<Stopping>,
    /// The postStart hook of the running instance has not ended yet.
    pub post_start: bool,
    /// The startup probe of the running instance.
    pub startup: Option<Probe>,
    /// The readiness probe of the running instance.
    pub readiness: Option<Probe>,
    /// The liveness probe of the running instance.
    pub liveness: Option<Probe>,
}

/// State of a container's image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Image {
    /// Not checked for the next start.
    #[default]
    Unknown,
    /// It is being pulled.
    Pulling {
        /// The last failure's back-off in seconds.
        delay: i64,
    },
    /// It is present.
    Present,
    /// It is not available; tried again at `until`.
    Failed {
        /// Time of the next try.
        until: Timestamp,
        /// The back-off in seconds that led to `until`.
        delay: i64,
        /// `ErrImagePull`, `InvalidImageName`, `ErrImageNeverPull`, …
        reason: String,
        /// The cause.
        message: String,
        /// Image that is not available: the container's own or that of a volume.
        name: String,
        /// True if the back-off was reported already: the reason is then `ImagePullBackOff`.
        waiting: bool,
    },
}

/// A container that could not be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `CreateContainerConfigError`, `CreateContainerError`, `RunContainerError`.
    pub reason: String,
    /// The cause.
    pub message: String,
    /// Time of the next try.
    pub until: Timestamp,
}

/// A container that is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// Time of the next stage.
    pub deadline: Timestamp,
    /// Stage of the stop.
    pub stage: Stage,
}

/// Stage of a container's stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The preStop hook runs.
    PreStop,
    /// A sidecar's hook is over, and it waits for the containers that stop before it.
    Waiting,
    /// The stop signal was sent.
    Signalled,
    /// SIGKILL was sent.
    Killed,
}

impl View {
    /// Creates the view of a pod of which nothing exists on the node yet.
    pub fn new(start_time: Timestamp, host_addresses: Vec<IpAddr>) -> Self {
        Self {
            start_time,
            host_addresses,
            rejection: None,
            termination: None,
            sandbox: Sandbox::Absent,
            addresses: Vec::new(),
            instances: BTreeMap::new(),
            users: BTreeMap::new(),
            allocated: Resources::new(),
            actual: Resources::new(),
            resize_pending: None,
            resize_progress: None,
            memory: BTreeMap::new(),
            winding_down: None,
            final_status_stored: false,
        }
    }

    /// Returns the newest instance of a container.
    pub fn latest(&self, container: &str) -> Option<&Instance> {
        self.instances.get(container).and_then(|instances| instances.last())
    }

    /// Returns the previous instance of a container.
    pub fn previous(&self, container: &str) -> Option<&Instance> {
        self.instances
            .get(container)
            .and_then(|instances| instances.iter().rev().nth(1))
    }

    /// True if the newest instance of a container runs.
    pub fn is_running(&self, container: &str) -> bool {
        self.latest(container)
            .is_some_and(|instance| matches!(instance.state, State::Running { .. }))
    }

    /// True if the newest instance of a container runs and its postStart hook has not ended: its
    /// status is not `running` yet.
    pub fn is_hooked(&self, container: &str) -> bool {
        self.is_running(container) && self.memory.get(container).is_some_and(|memory| memory.post_start)
    }

    /// Returns the newest instance of a container, if it belongs to the present sandbox and was not
    /// reset by a restart of all containers.
    pub fn current(&self, container: &str) -> Option<&Instance> {
        self.latest(container)
            .filter(|instance| !instance.lost && !instance.reset)
    }

    /// True if the newest instance of a container ended in a restart of all containers.
    pub fn is_reset(&self, container: &str) -> bool {
        self.latest(container).is_some_and(|instance| instance.reset)
    }

    /// True if any process of the pod may still exist.
    pub fn any_alive(&self) -> bool {
        self.instances.values().flatten().any(Instance::is_alive) || self.memory.values().any(|memory| memory.starting)
    }

    /// True if a running container has passed its postStart hook and its startup probe.
    pub fn is_started(&self, container: &str) -> bool {
        self.is_running(container)
            && self
                .memory
                .get(container)
                .is_none_or(|memory| !memory.post_start && memory.startup.as_ref().is_none_or(Probe::has_succeeded))
    }

    /// True if a container is ready.
    pub fn is_ready(&self, container: &str) -> bool {
        self.is_started(container)
            && self
                .memory
                .get(container)
                .is_none_or(|memory| memory.readiness.as_ref().is_none_or(Probe::has_succeeded))
    }
}
