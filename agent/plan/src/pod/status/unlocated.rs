//! Containers of an ended pod without a known end: they never ran, or their turn did not come.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};

use crate::pod::pods;

/// Reason of such an end.
const REASON: &str = "ContainerStatusUnknown";
const MESSAGE: &str = "The container could not be located when the pod was terminated";
const CODE: i32 = 137;

/// Terminates the containers' statuses of a pod that has ended, so that no client waits for them.
/// Containers still blocked by init containers keep their status.
pub(super) fn settle(pod: &Pod, main: &mut [ContainerStatus], initial: &mut [ContainerStatus]) {
    if has_initialized(pod, main, initial) {
        main.iter_mut().for_each(end);
    }
    // All up to the last one that started, and the first one in any case.
    let begun = initial.iter().rposition(|status| {
        let waits = state(status).is_none_or(|state| state.waiting.is_some());
        !waits || has_ended(status.last_state.as_ref())
    });
    let begun = begun.unwrap_or(0);
    initial.iter_mut().take(begun.saturating_add(1)).for_each(end);
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}

fn has_ended(state: Option<&ContainerState>) -> bool {
    state.is_some_and(|state| state.terminated.is_some())
}

/// True if initialization was over once.
fn has_initialized(pod: &Pod, main: &[ContainerStatus], initial: &[ContainerStatus]) -> bool {
    let Some(last) = pods::init_containers(pod).last() else {
        return true;
    };
    let has_run = |status: &ContainerStatus| {
        has_ended(status.last_state.as_ref()) || state(status).is_some_and(|state| state.running.is_some())
    };
    let is_done = |status: &ContainerStatus| {
        let terminated = state(status).and_then(|state| state.terminated.as_ref());
        status.name == last.name && terminated.is_some_and(|terminated| terminated.exit_code == 0)
    };
    main.iter().any(has_run) || initial.iter().any(is_done)
}

fn end(status: &mut ContainerStatus) {
    if has_ended(state(status)) {
        return;
    }
    let terminated = ContainerStateTerminated {
        exit_code: CODE,
        reason: Some(REASON.to_owned()),
        message: Some(MESSAGE.to_owned()),
        ..ContainerStateTerminated::default()
    };
    status.state = Some(ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    });
}
