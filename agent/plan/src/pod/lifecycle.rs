//! Next actions for a pod.

mod ending;
mod reset;
mod turn;

use api::pod::as_container;
use api::pod::ending::Group;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod::action::{Action, Plan, Why};
use crate::pod::observed::{Image, Instance, Memory, Sandbox, Stage, State, View};
use crate::pod::pods;
use crate::pod::probe::{Kind, Probe};
use crate::{Timestamp, after};
pub use ending::LEAST_GRACE;
use ending::{carry_on, wind_down};
pub use reset::{is_due as is_reset_due, resume as resume_reset};
use turn::{Turn, turn};

/// The reason of a pod that exceeded `activeDeadlineSeconds`.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// End of a pod that was not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// True for the phase `Succeeded`, false for `Failed`.
    pub succeeded: bool,
    /// For `status.reason`.
    pub reason: Option<String>,
    /// For `status.message`.
    pub message: Option<String>,
    /// Seconds until SIGKILL, where they override the pod's grace period.
    pub grace: Option<i64>,
}

impl End {
    fn plain(succeeded: bool) -> Self {
        Self {
            succeeded,
            reason: None,
            message: None,
            grace: None,
        }
    }

    fn failed(reason: &str, message: String) -> Self {
        Self {
            reason: Some(reason.to_owned()),
            message: Some(message),
            ..Self::plain(false)
        }
    }
}

/// Returns the pod's end if it has one: rejected, terminated by the agent, past its deadline, or
/// with no container left to restart.
pub fn end(pod: &Pod, view: &View, now: Timestamp) -> Option<End> {
    if let Some(phase) = pods::terminal_phase(pod) {
        let status = pod.status.as_ref();
        return Some(End {
            succeeded: phase == "Succeeded",
            reason: status.and_then(|status| status.reason.clone()),
            message: status.and_then(|status| status.message.clone()),
            grace: None,
        });
    }
    if let Some(rejection) = &view.rejection {
        return Some(End::failed(&rejection.reason, rejection.message.clone()));
    }
    if let Some(termination) = &view.termination {
        let end = End::failed(termination.reason, termination.message.clone());
        let grace = Some(termination.grace);
        return Some(End { grace, ..end });
    }
    let containers = pods::main_containers(pod);
    let resets = reset::is_due(pod, view);
    let done = |group, container: &Container| !resets && is_over(pod, view, (group, container));
    let all_done = !containers.is_empty() && containers.iter().all(|own| done(Group::Main, own));
    let deadline = deadline(pod, view);
    // Containers that exit after the deadline do not make the pod succeed.
    let in_time = |container: &Container| {
        let exit = view.latest(&container.name).and_then(Instance::exit);
        exit.is_some_and(|exit| deadline.is_none_or(|deadline| exit.finished_at < deadline))
    };
    if all_done && containers.iter().all(in_time) {
        let succeeded = containers
            .iter()
            .all(|container| exit_code(view, &container.name) == Some(0));
        return Some(End::plain(succeeded));
    }
    if deadline.is_some_and(|deadline| now >= deadline) {
        let message = "Pod was active on the node longer than the specified deadline";
        return Some(End::failed(DEADLINE_EXCEEDED, message.to_owned()));
    }
    let initial_failed = pods::init_containers(pod).iter().any(|container| {
        done(Group::Init, container) && exit_code(view, &container.name).is_some_and(|code| code != 0)
    });
    (initial_failed && !initialized(pod, view)).then(|| End::plain(false))
}

fn deadline(pod: &Pod, view: &View) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    Some(after(view.start_time, seconds))
}

fn exit_code(view: &View, container: &str) -> Option<i32> {
    view.latest(container).and_then(Instance::exit).map(|exit| exit.code)
}

/// True if a container has exited and is not restarted.
pub fn is_over(pod: &Pod, view: &View, (group, container): (Group, &Container)) -> bool {
    !view.is_reset(&container.name)
        && exit_code(view, &container.name).is_some_and(|code| !pods::restarts_in(pod, group, container, code))
        && !view
            .memory
            .get(&container.name)
            .is_some_and(|memory| memory.starting || memory.renewal || memory.revival)
}

/// True if initialization is over: all init containers have succeeded and all sidecars have
/// started.
pub fn initialized(pod: &Pod, view: &View) -> bool {
    has_begun(pod, view)
        || pods::init_containers(pod)
            .iter()
            .all(|container| is_initial_done(view, container))
}

fn has_begun(pod: &Pod, view: &View) -> bool {
    pods::main_containers(pod)
        .iter()
        .any(|container| view.current(&container.name).is_some())
}

/// True if one init container lets the next one start.
pub fn is_initial_done(view: &View, container: &Container) -> bool {
    if pods::is_sidecar(container) {
        view.is_started(&container.name)
    } else {
        view.current(&container.name)
            .and_then(Instance::exit)
            .is_some_and(|exit| exit.code == 0)
    }
}

/// Returns the next actions for `pod`, observed as `view` at `now`.
pub fn decide(pod: &Pod, view: &View, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let deletion = pods::deletion_grace(pod);
    let end = end(pod, view, now);
    if deletion.is_some() || end.is_some() {
        let own = end.and_then(|end| end.grace);
        let asked = [deletion, own].into_iter().flatten().min();
        // Not less than a second (`calculateEffectiveGracePeriod`, `pkg/kubelet/pod_workers.go`).
        let grace = asked.unwrap_or_else(|| pods::grace(pod)).max(1);
        wind_down(pod, view, now, grace, &mut plan);
        if plan.actions.is_empty() && deletion.is_some() && view.sandbox == Sandbox::Removed && view.final_status_stored
        {
            plan.actions.push(Action::Finish);
        }
        return plan;
    }
    if let Some(deadline) = deadline(pod, view) {
        plan.wake(deadline);
    }
    if reset::is_due(pod, view) {
        reset::carry_on(pod, view, now, &mut plan);
    } else {
        advance(pod, view, now, &mut plan);
    }
    plan
}

/// Returns the next actions for a pod that the API no longer has.
pub fn abandon(pod: &Pod, view: &View, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let grace = pods::deletion_grace(pod).map_or(1, |grace| grace.clamp(1, 2));
    wind_down(pod, view, now, grace, &mut plan);
    plan
}

/// Moves the pod towards its desired state.
fn advance(pod: &Pod, view: &View, now: Timestamp, plan: &mut Plan) {
    // Ephemeral containers debug a pod that may be stuck, so they wait for nothing but the sandbox.
    for container in pods::ephemeral_containers(pod) {
        // Ephemeral containers are never restarted.
        if view.latest(&container.name).and_then(Instance::exit).is_none() {
            let container = (Group::Ephemeral, &as_container(container));
            keep(pod, view, container, true, now, plan);
        }
    }
    let begun = has_begun(pod, view);
    let mut blocked = false;
    for container in pods::init_containers(pod) {
        let pending = !is_initial_done(view, container);
        if pods::is_sidecar(container) || !begun {
            keep(pod, view, (Group::Init, container), !blocked, now, plan);
        }
        blocked |= pending && !begun;
    }
    for container in pods::main_containers(pod) {
        keep(pod, view, (Group::Main, container), !blocked, now, plan);
        blocked |= holds_up(pod, view, container, now);
    }
    // After the images: those known to be present can be configured while the sandbox is prepared.
    match view.sandbox {
        Sandbox::Absent => plan.actions.push(Action::Prepare),
        Sandbox::Failed { until, .. } if now >= until => plan.actions.push(Action::Prepare),
        Sandbox::Failed { until, .. } => plan.wake(until),
        Sandbox::Preparing | Sandbox::Removing | Sandbox::Removed | Sandbox::Ready { .. } => {}
    }
}

/// True if the containers after this one wait for it, that is until its postStart hook has ended. A
/// container does not block the others when it cannot be started, has exited already, or exited in
/// an earlier sandbox and is not to run now.
fn holds_up(pod: &Pod, view: &View, container: &Container, now: Timestamp) -> bool {
    let hooks = container.lifecycle.as_ref();
    if hooks.is_none_or(|hooks| hooks.post_start.is_none()) {
        return false;
    }
    let memory = view.memory.get(&container.name);
    if memory.is_some_and(|memory| memory.starting) {
        return true;
    }
    match view.current(&container.name) {
        None => {
            let ended = view.latest(&container.name).and_then(Instance::exit);
            ended.is_none_or(|exit| turn(pod, view, (Group::Main, container), exit, now) == Turn::Now)
                && memory.is_none_or(|memory| memory.failure.is_none() && !matches!(memory.image, Image::Failed { .. }))
        }
        Some(_) => view.is_hooked(&container.name),
    }
}

/// A container and its group, which by the name alone would take a search through all containers.
type Own<'a> = (Group, &'a Container);

/// Reconciles one container with its restart policy. Its image is ensured even while the container
/// may not start yet.
fn keep(pod: &Pod, view: &View, own: Own<'_>, may_start: bool, now: Timestamp, plan: &mut Plan) {
    let container = own.1;
    let name = &container.name;
    let fresh = Memory::default();
    let memory = view.memory.get(name).map_or(&fresh, |memory| memory);
    if memory.starting {
        return;
    }
    forget_old_instances(view, name, plan);
    match view.latest(name).map(|instance| &instance.state) {
        None => start(view, container, memory, may_start, now, plan),
        Some(State::Created | State::Running { .. }) => tend(pod, view, own, memory, now, plan),
        Some(State::Exited(exit)) => match turn(pod, view, own, exit, now) {
            Turn::Never => {}
            Turn::Later(due) => plan.wake(due),
            Turn::Now => start(view, container, memory, may_start, now, plan),
        },
    }
}

fn forget_old_instances(view: &View, name: &str, plan: &mut Plan) {
    let instances = view.instances.get(name).map_or(&[][..], Vec::as_slice);
    let surplus = instances.len().saturating_sub(2);
    for instance in instances.iter().take(surplus) {
        plan.actions.push(Action::Remove {
            container: name.to_owned(),
            id: instance.id.clone(),
        });
    }
}

fn start(view: &View, container: &Container, memory: &Memory, may_start: bool, now: Timestamp, plan: &mut Plan) {
    let name = &container.name;
    if let Some(failure) = &memory.failure
        && now < failure.until
    {
        plan.wake(failure.until);
        return;
    }
    match &memory.image {
        Image::Unknown => plan.actions.push(Action::EnsureImage(name.clone())),
        Image::Failed { until, .. } if now >= *until => plan.actions.push(Action::EnsureImage(name.clone())),
        Image::Failed { until, .. } => plan.wake(*until),
        Image::Pulling { .. } => {}
        Image::Present => {
            if may_start && matches!(view.sandbox, Sandbox::Ready { .. }) {
                let attempt = view
                    .latest(name)
                    .map_or(0, |instance| instance.attempt.saturating_add(1));
                plan.actions.push(Action::Run {
                    container: name.clone(),
                    attempt,
                });
            }
        }
    }
}

/// Handles a running instance: its probes, and its stop after a failed one.
fn tend(pod: &Pod, view: &View, (group, container): Own<'_>, memory: &Memory, now: Timestamp, plan: &mut Plan) {
    let name = &container.name;
    if let Some(stopping) = &memory.stopping {
        carry_on(name, stopping.stage, stopping.deadline, now, plan);
        ask_whether_ready(view, name, now, plan);
        return;
    }
    if memory.renewal {
        plan.actions.push(Action::Stop {
            container: name.clone(),
            why: Why::Resize,
            grace: pods::grace(pod),
        });
        return;
    }
    if group != Group::Init && has_other_image(view, container) {
        plan.actions.push(Action::Stop {
            container: name.clone(),
            why: Why::Image,
            grace: pods::grace(pod),
        });
        return;
    }
    for (probe, specification, why) in [
        (&memory.startup, &container.startup_probe, Why::Startup),
        (&memory.liveness, &container.liveness_probe, Why::Liveness),
    ] {
        if probe.as_ref().is_some_and(Probe::has_failed) {
            let own = specification
                .as_ref()
                .and_then(|probe| probe.termination_grace_period_seconds);
            let grace = own.unwrap_or_else(|| pods::grace(pod));
            plan.actions.push(Action::Stop {
                container: name.clone(),
                why,
                grace,
            });
            return;
        }
    }
    let started = view.is_started(name);
    for (kind, probe) in [
        (Kind::Startup, &memory.startup),
        (Kind::Readiness, &memory.readiness),
        (Kind::Liveness, &memory.liveness),
    ] {
        if view.is_running(name) && !memory.post_start && (kind == Kind::Startup || started) {
            ask(name, kind, probe.as_ref(), now, plan);
        }
    }
}

/// True while a container that was stopped because its image or resources changed is started again,
/// which the kubelet does in one go (`computePodActions`, `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
pub fn replaces_container(pod: &Pod, view: &View) -> bool {
    pods::main_containers(pod).iter().any(|container| {
        let name = &container.name;
        let memory = view.memory.get(name);
        view.latest(name).and_then(Instance::exit).is_some()
            && memory.is_none_or(|memory| memory.failure.is_none())
            && (memory.is_some_and(|memory| memory.renewal) || has_other_image(view, container))
    })
}

/// True if the newest instance has another image than the pod's spec names now.
fn has_other_image(view: &View, container: &Container) -> bool {
    let named = container.image.as_deref().unwrap_or_default();
    let newest = view.latest(&container.name).filter(|instance| !instance.lost);
    newest.is_some_and(|instance| instance.image != named)
}

/// A terminating container's readiness is still probed, since endpoints depend on it.
fn ask_whether_ready(view: &View, name: &str, now: Timestamp, plan: &mut Plan) {
    let memory = view.memory.get(name).filter(|_| view.is_started(name));
    let Some(memory) = memory else { return };
    let killed = memory
        .stopping
        .as_ref()
        .is_some_and(|stopping| stopping.stage == Stage::Killed);
    if !killed {
        ask(name, Kind::Readiness, memory.readiness.as_ref(), now, plan);
    }
}

fn ask(name: &str, kind: Kind, probe: Option<&Probe>, now: Timestamp, plan: &mut Plan) {
    match probe.and_then(Probe::due) {
        Some(due) if now >= due => plan.actions.push(Action::Probe {
            container: name.to_owned(),
            kind,
        }),
        Some(due) => plan.wake(due),
        None => {}
    }
}
