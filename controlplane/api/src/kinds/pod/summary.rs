//! Pod summary, as `kubectl get pods` shows it (`k8s.io/kubernetes/pkg/printers/internalversion`).

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::table::age;
use crate::workload::pod::{condition, is_sidecar, is_terminal, phase};

/// Contents of the columns Ready, Status and Restarts.
pub(super) struct Summary {
    ready: usize,
    total: usize,
    /// The STATUS column.
    pub(super) reason: String,
    restarts: Restarts,
}

/// Number of container restarts, and the time at which the last of these containers ended.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        self.count += i64::from(container.restart_count);
        let ended = container
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        let ended = ended
            .and_then(|terminated| terminated.finished_at.as_ref())
            .map(|time| time.0);
        self.last = self.last.max(ended);
    }
}

impl Summary {
    pub(super) fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let sidecars = spec
            .iter()
            .filter_map(|spec| spec.init_containers.as_ref())
            .flatten()
            .filter(|c| is_sidecar(c));
        let mut summary = Self {
            ready: 0,
            total: spec.map_or(0, |spec| spec.containers.len()) + sidecars.count(),
            reason: first_reason(pod),
            restarts: Restarts::default(),
        };
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        let (initializing, of_sidecars) = summary.add_init(pod, status);
        let initialized = condition(pod, "Initialized").is_some_and(|condition| condition.status == "True");
        if !initializing || initialized {
            summary.restarts = of_sidecars;
            summary.add_containers(pod, status);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            if status.reason.as_deref() == Some("NodeLost") {
                "Unknown".clone_into(&mut summary.reason);
            } else if !is_terminal(pod) {
                "Terminating".clone_into(&mut summary.reason);
            }
        }
        summary
    }

    /// Visits the init containers up to the first that has not completed. Returns true if there is
    /// one, and the restarts of sidecars.
    fn add_init(&mut self, pod: &Pod, status: &PodStatus) -> (bool, Restarts) {
        let specs = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.init_containers.as_deref())
            .unwrap_or_default();
        let none = ContainerState::default();
        let mut of_sidecars = Restarts::default();
        for (index, container) in status.init_container_statuses.iter().flatten().enumerate() {
            self.restarts.add(container);
            let sidecar = specs.iter().any(|spec| spec.name == container.name && is_sidecar(spec));
            if sidecar {
                of_sidecars.add(container);
            }
            let state = container.state.as_ref().unwrap_or(&none);
            let reason = match (&state.terminated, waiting_reason(state)) {
                (Some(terminated), _) if terminated.exit_code == 0 => continue,
                _ if sidecar && container.started == Some(true) => {
                    self.ready += usize::from(container.ready);
                    continue;
                }
                (Some(terminated), _) => end_reason(terminated),
                (None, Some(reason)) if reason != "PodInitializing" => reason.to_owned(),
                (None, _) => format!("{index}/{}", specs.len()),
            };
            self.reason = format!("Init:{reason}");
            return (true, of_sidecars);
        }
        (false, of_sidecars)
    }

    /// Visits the containers from last to first, so that the first one with a reason wins.
    fn add_containers(&mut self, pod: &Pod, status: &PodStatus) {
        let none = ContainerState::default();
        let mut running = false;
        let mut error = None;
        for container in status.container_statuses.iter().flatten().rev() {
            self.restarts.add(container);
            let state = container.state.as_ref().unwrap_or(&none);
            if let Some(reason) = waiting_reason(state) {
                reason.clone_into(&mut self.reason);
            } else if let Some(terminated) = &state.terminated {
                self.reason = end_reason(terminated);
                if terminated.exit_code != 0 {
                    error = Some(self.reason.clone());
                }
            } else if container.ready && state.running.is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            let ready = condition(pod, "Ready").is_some_and(|condition| condition.status == "True");
            match error {
                _ if running && ready => "Running".clone_into(&mut self.reason),
                Some(error) => self.reason = error,
                None if running => "NotReady".clone_into(&mut self.reason),
                None => {}
            }
        }
    }

    /// `1/2`
    pub(super) fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.total)
    }

    /// `3 (2m ago)`
    pub(super) fn restarts(&self, now: Timestamp) -> String {
        match self.restarts.last {
            Some(last) if self.restarts.count != 0 => format!("{} ({} ago)", self.restarts.count, age(now, last)),
            Some(_) | None => self.restarts.count.to_string(),
        }
    }
}

fn first_reason(pod: &Pod) -> String {
    let gated = condition(pod, "PodScheduled").and_then(|condition| condition.reason.as_deref());
    if let Some(reason) = gated.filter(|reason| *reason == "SchedulingGated") {
        return reason.to_owned();
    }
    let reason = pod
        .status
        .as_ref()
        .and_then(|status| status.reason.as_deref())
        .filter(|reason| !reason.is_empty());
    reason.unwrap_or_else(|| phase(pod)).to_owned()
}

fn waiting_reason(state: &ContainerState) -> Option<&str> {
    state
        .waiting
        .as_ref()?
        .reason
        .as_deref()
        .filter(|reason| !reason.is_empty())
}

fn end_reason(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref(), terminated.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated.exit_code),
    }
}
