//! A pod as an attempt of a Job: kept only for pods of Jobs.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod as Whole, PodSpec, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The finalizer of pods that are not counted yet.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with a pod's completion index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation with the number of earlier failures of the index.
pub const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with the number of earlier failures that were ignored.
pub const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Fields of a Job's pod that only the Job's plan reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The completion index.
    pub index: Option<u32>,
    /// Number of pods of the index that failed before this one.
    pub failures: i32,
    /// Number of those whose failure was ignored.
    pub ignored: i32,
    /// Time when it ended.
    pub ended: Option<Timestamp>,
    /// Failed containers with their exit codes, init containers last.
    pub exits: Box<[(Box<str>, i32)]>,
    /// Types and statuses of the conditions of a finished pod.
    pub conditions: Box<[(Box<str>, Box<str>)]>,
    /// Restarts of all containers.
    pub restarts: i32,
}

impl Attempt {
    /// The attempt of a pod, if it belongs to a Job.
    pub(super) fn of(pod: &Whole) -> Option<Box<Self>> {
        let metadata = &pod.metadata;
        let owned = metadata.owner_references.iter().flatten();
        let of_job = owned
            .into_iter()
            .any(|owner| owner.kind == "Job" && owner.controller == Some(true));
        let tracked = metadata.finalizers.iter().flatten().any(|held| held == TRACKING);
        if !of_job && !tracked {
            return None;
        }
        let text = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let count = |key| {
            text(key)
                .and_then(|text| text.parse().ok())
                .filter(|count: &i32| *count >= 0)
        };
        let status = pod.status.clone().unwrap_or_default();
        let deleted = metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let ends = deleted.is_some() || matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let all = || containers(&status).chain(init_containers(&status));
        let mut attempt = Self {
            index: text(INDEX).and_then(|text| text.parse().ok()),
            failures: count(FAILURES).unwrap_or(0),
            ignored: count(IGNORED_FAILURES).unwrap_or(0),
            ended: None,
            exits: Box::default(),
            conditions: Box::default(),
            restarts: all()
                .map(|container| container.restart_count)
                .fold(0, i32::saturating_add),
        };
        if ends {
            let grace = metadata.deletion_grace_period_seconds.unwrap_or(0);
            let began_to_go = deleted.and_then(|time| time.checked_sub(SignedDuration::from_secs(grace)).ok());
            attempt.ended = ended(pod.spec.as_ref(), &status)
                .or(began_to_go)
                .or(metadata.creation_timestamp.as_ref().map(|time| time.0));
            attempt.exits = all().filter_map(failed).collect();
            let conditions = status.conditions.iter().flatten();
            attempt.conditions = conditions
                .map(|condition| (condition.type_.as_str().into(), condition.status.as_str().into()))
                .collect();
        }
        Some(Box::new(attempt))
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.container_statuses.iter().flatten()
}

fn init_containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten()
}

fn failed(container: &ContainerStatus) -> Option<(Box<str>, i32)> {
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    (terminated.exit_code != 0).then(|| (container.name.as_str().into(), terminated.exit_code))
}

/// Time at which the last container ended, sidecars included, or the pod stopped being ready
/// (`getFinishedTime` of `pkg/controller/job/backoff_utils.go`).
fn ended(spec: Option<&PodSpec>, status: &PodStatus) -> Option<Timestamp> {
    let init = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten();
    let sidecars: Vec<&str> = init
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let counted = init_containers(status).filter(|container| sidecars.contains(&container.name.as_str()));
    let finished = |container: &ContainerStatus| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|time| time.0)
    };
    let all: Option<Vec<Timestamp>> = containers(status).chain(counted).map(finished).collect();
    all.and_then(|all| all.into_iter().max()).or_else(|| {
        let mut conditions = status.conditions.iter().flatten();
        let unready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "False");
        unready?.last_transition_time.as_ref().map(|time| time.0)
    })
}
