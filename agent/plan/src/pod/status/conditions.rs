//! The pod's conditions, in upstream's order.

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::Timestamp;
use crate::pod::observed::{Sandbox, View};
use crate::pod::{lifecycle, pods};

/// A condition's status, reason and message.
type Verdict = (bool, Option<String>, Option<String>);

const OWN: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// Condition of a pod that was terminated by a disruption.
const DISRUPTION: &str = "DisruptionTarget";

/// All containers are being restarted.
const RESTARTING: &str = "AllContainersRestarting";

/// A resize is requested.
const PENDING: &str = "PodResizePending";
/// A resize is allocated.
const IN_PROGRESS: &str = "PodResizeInProgress";

pub(super) fn build(pod: &Pod, view: &View, status: &PodStatus, now: Timestamp) -> Vec<PodCondition> {
    let phase = status.phase.as_deref().unwrap_or_default();
    let containers_ready = containers_ready(pod, view, phase);
    let verdicts = [
        (matches!(view.sandbox, Sandbox::Ready { .. }), None, None),
        initialized(pod, view, phase),
        ready(pod, phase, &containers_ready),
        containers_ready,
        (true, None, None),
    ];
    let old: &[PodCondition] = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or(&[]);
    let own = OWN
        .iter()
        .zip(verdicts)
        .map(|(name, verdict)| condition(name, verdict, old, pod, now));
    let told = view.termination.as_ref();
    let told = told
        .and_then(|termination| termination.disruption.clone())
        .map(|message| {
            let reason = "TerminationByKubelet".to_owned();
            condition(DISRUPTION, (true, Some(reason), Some(message)), old, pod, now)
        });
    let resize = resize(view, old, pod, now);
    let anew = pods::may_restart_all(pod).then(|| condition(RESTARTING, restarting(pod, view, phase), old, pod, now));
    let foreign = old
        .iter()
        .filter(|condition| !OWN.contains(&condition.type_.as_str()))
        .filter(|condition| ![PENDING, IN_PROGRESS, RESTARTING].contains(&condition.type_.as_str()))
        .filter(|condition| told.is_none() || condition.type_ != DISRUPTION)
        .cloned();
    let foreign: Vec<PodCondition> = foreign.collect();
    own.chain(anew).chain(foreign).chain(told).chain(resize).collect()
}

/// True if all containers are being restarted.
fn restarting(pod: &Pod, view: &View, phase: &str) -> Verdict {
    match phase {
        "Succeeded" => no("PodCompleted", None),
        "Failed" => no("PodFailed", None),
        _ if lifecycle::is_reset_due(pod, view) => {
            let message = "container exited with restart policy rule".to_owned();
            (true, Some("RestartAllContainersStarted".to_owned()), Some(message))
        }
        _ => (false, None, None),
    }
}

/// Conditions of a pending or unfinished resize.
fn resize(view: &View, old: &[PodCondition], pod: &Pod, now: Timestamp) -> Vec<PodCondition> {
    let pending = view.resize_pending.as_ref().map(|pending| {
        let verdict = (true, Some(pending.reason.to_owned()), Some(pending.message.clone()));
        (PENDING, verdict, pending.generation)
    });
    let progress = view.resize_progress.as_ref().map(|progress| {
        let reason = progress.error.as_ref().map(|_| "Error".to_owned());
        (IN_PROGRESS, (true, reason, progress.error.clone()), progress.generation)
    });
    let told = [pending, progress].into_iter().flatten();
    told.map(|(name, verdict, generation)| PodCondition {
        observed_generation: generation,
        ..condition(name, verdict, old, pod, now)
    })
    .collect()
}

fn condition(name: &str, verdict: Verdict, old: &[PodCondition], pod: &Pod, now: Timestamp) -> PodCondition {
    let status = if verdict.0 { "True" } else { "False" };
    let before = old
        .iter()
        .find(|condition| condition.type_ == name && condition.status == status);
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: verdict.1,
        message: verdict.2,
        last_probe_time: None,
        last_transition_time: before
            .and_then(|condition| condition.last_transition_time.clone())
            .or(Some(Time(now))),
        observed_generation: pod.metadata.generation,
    }
}

fn no(reason: &str, message: Option<String>) -> Verdict {
    (false, Some(reason.to_owned()), message)
}

fn names<'a>(containers: impl Iterator<Item = &'a Container>) -> String {
    containers
        .map(|container| container.name.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

/// True if initialization is over, or was before all containers were restarted.
pub(super) fn is_initialized(pod: &Pod, view: &View) -> bool {
    let mut main = pods::main_containers(pod).iter();
    lifecycle::initialized(pod, view) || main.any(|container| view.is_reset(&container.name))
}

fn initialized(pod: &Pod, view: &View, phase: &str) -> Verdict {
    if phase == "Succeeded" {
        return (true, Some("PodCompleted".to_owned()), None);
    }
    if is_initialized(pod, view) {
        return (true, None, None);
    }
    let pending = pods::init_containers(pod)
        .iter()
        .filter(|container| !lifecycle::is_initial_done(view, container));
    no(
        "ContainersNotInitialized",
        Some(format!("containers with incomplete status: [{}]", names(pending))),
    )
}

fn containers_ready(pod: &Pod, view: &View, phase: &str) -> Verdict {
    match phase {
        "Succeeded" => return no("PodCompleted", None),
        "Failed" => return no("PodFailed", None),
        _ => {}
    }
    let kept = pods::init_containers(pod)
        .iter()
        .filter(|container| pods::is_sidecar(container))
        .chain(pods::main_containers(pod));
    let unready: Vec<&Container> = kept.filter(|container| !view.is_ready(&container.name)).collect();
    if unready.is_empty() {
        return (true, None, None);
    }
    let message = format!("containers with unready status: [{}]", names(unready.into_iter()));
    no("ContainersNotReady", Some(message))
}

fn ready(pod: &Pod, phase: &str, containers_ready: &Verdict) -> Verdict {
    if !containers_ready.0 || matches!(phase, "Succeeded" | "Failed") {
        return containers_ready.clone();
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or(&[]);
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.readiness_gates.as_deref())
        .unwrap_or(&[]);
    let missing: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match conditions.iter().find(|condition| condition.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if missing.is_empty() {
        (true, None, None)
    } else {
        no("ReadinessGatesNotReady", Some(missing.join(", ")))
    }
}
