//! Entries of `containerStatuses`, one per container.

use api::pod::ending::{self, Group, Leaving};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{RESET_MESSAGE, RESETTING};
use crate::pod::observed::{Exit, Image, Instance, State, View};
use crate::pod::{lifecycle, pods};

pub(super) fn statuses(
    pod: &Pod,
    view: &View,
    (group, containers): (Group, &[Container]),
    scheme: &str,
    ended: bool,
) -> Vec<ContainerStatus> {
    let stored = pods::stored_statuses(pod, group);
    let leaving = pod.spec.as_ref().map(|spec| Leaving::of(spec, group));
    // True if the API server's status validation does not let a container leave its stored end.
    let is_for_good = |index, stored: &ContainerStatus| match (ending::code(stored), &leaving) {
        (Some(code), Some(leaving)) => !leaving.allows(index, &stored.name, code),
        (_, _) => false,
    };
    containers
        .iter()
        .enumerate()
        .map(|(index, container)| {
            let stored = ending::status_at(stored, index, &container.name);
            // Ends from before this agent's time are known only to the API.
            if ended
                && view.latest(&container.name).is_none()
                && let Some(stored) = stored
            {
                return stored.clone();
            }
            let status = status(pod, view, (group, container), scheme, ended);
            match stored.filter(|stored| is_for_good(index, stored)) {
                Some(stored) if ending::code(&status).is_none() => held(stored, status),
                Some(_) | None => status,
            }
        })
        .collect()
}

/// Status of a container whose stored end is final in the API. An init container runs once more
/// where the sandbox was lost: its status stays until it has ended again.
fn held(stored: &ContainerStatus, status: ContainerStatus) -> ContainerStatus {
    let end = |state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref()?.container_id.clone();
    let newer = end(&status.last_state);
    if newer.is_none() || newer == end(&stored.state) {
        return stored.clone();
    }
    ContainerStatus {
        state: status.last_state,
        last_state: stored.state.clone(),
        ..status
    }
}

/// True if an init container has succeeded.
fn is_done(latest: Option<&Instance>) -> bool {
    let ended = latest.filter(|latest| !latest.reset).and_then(Instance::exit);
    ended.is_some_and(|exit| exit.code == 0)
}

fn status(
    pod: &Pod,
    view: &View,
    (group, container): (Group, &Container),
    scheme: &str,
    over: bool,
) -> ContainerStatus {
    let name = &container.name;
    let latest = view.latest(name);
    let previous = view.previous(name);
    let initial = group == Group::Init && !pods::is_sidecar(container);
    let waiting = |(reason, message): (String, Option<String>)| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason),
            message,
        }),
        ..ContainerState::default()
    };
    let (state, last) = match latest.map(|instance| (instance, &instance.state)) {
        None => (waiting(waiting_reason(pod, view, container)), ContainerState::default()),
        Some((_, State::Created)) => (waiting(waiting_reason(pod, view, container)), ended(previous, scheme)),
        Some((_, State::Running { .. })) if view.is_hooked(name) && !over => {
            (waiting(waiting_reason(pod, view, container)), ended(previous, scheme))
        }
        Some((_, State::Running { since })) => (running(*since), ended(previous, scheme)),
        Some((instance, State::Exited(_))) if instance.reset && is_alive(pod, view) => {
            let memory = view.memory.get(name);
            let reason = if memory.is_some_and(|memory| memory.failure.is_some()) {
                waiting_reason(pod, view, container)
            } else {
                (RESETTING.to_owned(), Some(RESET_MESSAGE.to_owned()))
            };
            (waiting(reason), ended(Some(instance), scheme))
        }
        // Its policy may not restart it: the end appears only in `lastState`.
        Some((instance, State::Exited(exit))) if !over && is_renewed(pod, view, (group, container), exit) => (
            waiting(waiting_reason(pod, view, container)),
            ended(Some(instance), scheme),
        ),
        Some((instance, State::Exited(exit))) => {
            if !over && restart_is_due(pod, view, (group, container), exit) {
                (
                    waiting(crash_loop(pod, view, container, exit)),
                    ended(Some(instance), scheme),
                )
            } else {
                (terminated(instance, exit, scheme), ended(previous, scheme))
            }
        }
    };
    let added = group == Group::Ephemeral;
    let ready = !added && if initial { is_done(latest) } else { view.is_ready(name) };
    let mounted = latest.is_some();
    ContainerStatus {
        name: name.clone(),
        state: Some(state),
        last_state: Some(last),
        ready,
        started: (!added).then(|| is_started(view, name, initial)),
        restart_count: latest.map_or(0, |instance| i32::try_from(instance.attempt).unwrap_or(i32::MAX)),
        image: latest.map_or_else(
            || container.image.clone().unwrap_or_default(),
            |instance| instance.image.clone(),
        ),
        image_id: latest.map_or_else(String::new, |instance| instance.image_id.clone()),
        container_id: latest
            .filter(|instance| !instance.id.is_empty())
            .map(|instance| identifier(scheme, &instance.id)),
        resources: mounted.then(|| actual(view, container)),
        allocated_resources: allocated(view, container).requests.filter(|_| mounted),
        volume_mounts: mounts(container),
        user: latest.and_then(|instance| view.users.get(&instance.id)).cloned(),
        // Upstream leaves the field out where the pod does not set it.
        stop_signal: container.lifecycle.as_ref().and_then(|hooks| hooks.stop_signal.clone()),
        ..ContainerStatus::default()
    }
}

/// Init containers that are not sidecars have no startup probe.
fn is_started(view: &View, name: &str, initial: bool) -> bool {
    if initial {
        view.is_running(name)
    } else {
        view.is_started(name)
    }
}

fn identifier(scheme: &str, id: &str) -> String {
    if id.contains("://") {
        id.to_owned()
    } else {
        format!("{scheme}://{id}")
    }
}

/// Resources allocated to a container.
fn allocated(view: &View, container: &Container) -> ResourceRequirements {
    let own = || container.resources.clone().unwrap_or_default();
    let given = view.allocated.get(&container.name).cloned().unwrap_or_else(own);
    ResourceRequirements { claims: None, ..given }
}

/// Actual resources of a container.
fn actual(view: &View, container: &Container) -> ResourceRequirements {
    let known = view
        .actual
        .get(&container.name)
        .filter(|_| view.is_running(&container.name));
    known.cloned().unwrap_or_else(|| allocated(view, container))
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    let shown = mounts.iter().map(|mount| {
        let read_only = mount.read_only.unwrap_or(false);
        let below = match mount.recursive_read_only.as_deref() {
            Some("Enabled" | "IfPossible") => "Enabled",
            Some(_) | None => "Disabled",
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| below.to_owned()),
            volume_status: None,
        }
    });
    Some(shown.collect())
}

fn running(since: crate::Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(since)),
        }),
        ..ContainerState::default()
    }
}

fn ended(instance: Option<&Instance>, scheme: &str) -> ContainerState {
    match instance.and_then(|instance| Some((instance, instance.exit()?))) {
        Some((instance, _)) if instance.reset => removed(),
        Some((instance, exit)) => terminated(instance, exit, scheme),
        None => ContainerState::default(),
    }
}

/// The end of a container that was removed for a restart of all containers, as upstream reports it.
fn removed() -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            message: Some(RESET_MESSAGE.to_owned()),
            reason: Some(RESETTING.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn terminated(instance: &Instance, exit: &Exit, scheme: &str) -> ContainerState {
    // A container that never started has the zero time, as with runtimes that count in seconds.
    let never = if exit.reason == "StartError" {
        crate::Timestamp::UNIX_EPOCH
    } else {
        exit.finished_at
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: (!instance.id.is_empty()).then(|| identifier(scheme, &instance.id)),
            exit_code: exit.code,
            finished_at: Some(Time(exit.finished_at)),
            message: (!exit.message.is_empty()).then(|| exit.message.clone()),
            reason: Some(exit.reason.clone()),
            signal: None,
            started_at: Some(Time(exit.started_at.unwrap_or(never))),
        }),
        ..ContainerState::default()
    }
}

/// True if the status should show the end in `lastState` and the container as waiting: for its
/// back-off, or because it cannot start.
fn restart_is_due(pod: &Pod, view: &View, (group, container): (Group, &Container), exit: &Exit) -> bool {
    let memory = view.memory.get(&container.name);
    let delayed = memory.is_some_and(|memory| {
        memory.back_off.delay_seconds(exit.finished_at) > 0
            || memory.failure.is_some()
            || matches!(memory.image, Image::Failed { .. })
    });
    let again = || memory.is_some_and(|memory| memory.revival) || pods::restarts_in(pod, group, container, exit.code);
    is_alive(pod, view) && delayed && !lifecycle::is_over(pod, view, (group, container)) && again()
}

/// True if the container was stopped to get another image or other resources, or by a failed probe
/// whose exit code its policy would not restart, and the next instance is on its way.
fn is_renewed(pod: &Pod, view: &View, own: (Group, &Container), exit: &Exit) -> bool {
    let (group, container) = own;
    let Some(memory) = view.memory.get(&container.name).filter(|_| is_alive(pod, view)) else {
        return false;
    };
    let revived = || memory.revival && !pods::restarts_in(pod, group, container, exit.code);
    memory.renewal || revived() && !restart_is_due(pod, view, own, exit)
}

/// True if the pod is not terminating.
fn is_alive(pod: &Pod, view: &View) -> bool {
    let ends = view.rejection.is_some() || view.termination.is_some();
    pods::deletion_grace(pod).is_none() && pods::terminal_phase(pod).is_none() && !ends
}

fn crash_loop(pod: &Pod, view: &View, container: &Container, exit: &Exit) -> (String, Option<String>) {
    let Some(memory) = view.memory.get(&container.name) else {
        return ("CrashLoopBackOff".to_owned(), None);
    };
    if memory.failure.is_some() || matches!(memory.image, Image::Failed { .. }) {
        return waiting_reason(pod, view, container);
    }
    let message = format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        duration(memory.back_off.delay_seconds(exit.finished_at)),
        container.name,
        pods::name(pod),
        pods::namespace(pod),
        pods::uid(pod)
    );
    ("CrashLoopBackOff".to_owned(), Some(message))
}

/// Formats seconds as Go prints a duration.
fn duration(seconds: i64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

fn waiting_reason(pod: &Pod, view: &View, container: &Container) -> (String, Option<String>) {
    let initializing = if pods::init_containers(pod).is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    };
    let plain = (initializing.to_owned(), None);
    let Some(memory) = view.memory.get(&container.name) else {
        return plain;
    };
    if let Some(failure) = &memory.failure {
        return (failure.reason.clone(), Some(failure.message.clone()));
    }
    match &memory.image {
        Image::Failed {
            reason,
            message,
            name,
            waiting,
            ..
        } => {
            if *waiting && reason == "ErrImagePull" {
                (
                    "ImagePullBackOff".to_owned(),
                    Some(format!("Back-off pulling image \"{name}\": {reason}: {message}")),
                )
            } else {
                (reason.clone(), Some(message.clone()))
            }
        }
        Image::Unknown | Image::Pulling { .. } | Image::Present => plain,
    }
}
