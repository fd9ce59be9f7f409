//! Termination of a pod's containers.

use k8s_openapi::api::core::v1::Pod;

use crate::pod::action::{Action, Plan, Why};
use crate::pod::observed::{Instance, Sandbox, Stage, Stopping, View};
use crate::pod::pods;
use crate::{Timestamp, after};

/// Minimum time between a container's stop signal and SIGKILL, in seconds
/// (`minimumGracePeriodInSeconds` of pkg/kubelet/kuberuntime).
pub const LEAST_GRACE: i64 = 2;

/// Stops everything: the main and ephemeral containers at once, then the sidecars from the last to
/// the first, then the sandbox. All preStop hooks run at the same time.
pub(super) fn wind_down(pod: &Pod, view: &View, now: Timestamp, grace: i64, plan: &mut Plan) {
    let mut waiting = false;
    let own = pods::all_containers(pod).filter(|container| !pods::is_sidecar_of(pod, container));
    let added = pods::ephemeral_containers(pod).iter().map(|container| &container.name);
    for name in own.map(|container| &container.name).chain(added) {
        waiting |= stop(view, name, grace, now, plan);
    }
    // Sidecars stop late, but within the same grace period of the pod.
    let elapsed = view.winding_down.map_or(0, |since| now.duration_since(since).as_secs());
    let left = grace.saturating_sub(elapsed).max(LEAST_GRACE.min(grace));
    let sidecars = pods::init_containers(pod).iter().rev();
    for container in sidecars.filter(|container| pods::is_sidecar(container)) {
        let name = &container.name;
        waiting |= stop_in_turn(view, name, !waiting, left, now, plan);
    }
    if !waiting && !view.any_alive() {
        match view.sandbox {
            Sandbox::Absent | Sandbox::Failed { .. } | Sandbox::Ready { .. } => plan.actions.push(Action::TearDown),
            Sandbox::Preparing | Sandbox::Removing | Sandbox::Removed => {}
        }
    }
}

/// Progress of an instance that has to terminate.
enum End<'a> {
    /// It has terminated.
    Over,
    /// It is being started.
    Starting,
    /// It was not told to stop yet.
    Untold,
    Told(&'a Stopping),
}

fn end<'a>(view: &'a View, name: &str) -> End<'a> {
    let memory = view.memory.get(name);
    if memory.is_some_and(|memory| memory.starting) {
        return End::Starting;
    }
    if !view.latest(name).is_some_and(Instance::is_alive) {
        return End::Over;
    }
    memory
        .and_then(|memory| memory.stopping.as_ref())
        .map_or(End::Untold, End::Told)
}

/// Moves a container towards its end; true if it is still running or starting.
fn stop(view: &View, name: &str, grace: i64, now: Timestamp, plan: &mut Plan) -> bool {
    match end(view, name) {
        End::Over => return false,
        End::Starting => {}
        End::Untold => plan.actions.push(Action::Stop {
            container: name.to_owned(),
            why: Why::Pod,
            grace,
        }),
        End::Told(stopping) => {
            hurry(name, stopping, grace, now, plan);
            super::ask_whether_ready(view, name, now, plan);
        }
    }
    true
}

/// Same for a sidecar: its signal waits for its turn.
fn stop_in_turn(view: &View, name: &str, turn: bool, grace: i64, now: Timestamp, plan: &mut Plan) -> bool {
    match end(view, name) {
        End::Over => return false,
        End::Starting => {}
        End::Untold => plan.actions.push(Action::Announce {
            container: name.to_owned(),
            grace,
        }),
        End::Told(stopping) if turn && stopping.stage == Stage::Waiting => {
            plan.actions.push(Action::Turn(name.to_owned()));
        }
        End::Told(stopping) => {
            hurry(name, stopping, grace, now, plan);
            super::ask_whether_ready(view, name, now, plan);
        }
    }
    true
}

/// Shortens the grace period of a stop.
pub(super) fn hurry(name: &str, stopping: &Stopping, grace: i64, now: Timestamp, plan: &mut Plan) {
    let least = if stopping.stage == Stage::Signalled {
        LEAST_GRACE
    } else {
        0
    };
    let latest = after(now, grace.max(least));
    if stopping.deadline > latest {
        plan.actions.push(Action::Hasten {
            container: name.to_owned(),
            deadline: latest,
        });
    }
    carry_on(name, stopping.stage, stopping.deadline.min(latest), now, plan);
}

/// Wakes at the stop's deadline, and begins its next stage once that has passed.
pub(super) fn carry_on(name: &str, stage: Stage, deadline: Timestamp, now: Timestamp, plan: &mut Plan) {
    if now < deadline {
        plan.wake(deadline);
        return;
    }
    match stage {
        Stage::PreStop | Stage::Waiting => plan.actions.push(Action::Signal(name.to_owned())),
        Stage::Signalled => plan.actions.push(Action::Kill(name.to_owned())),
        Stage::Killed => {}
    }
}
