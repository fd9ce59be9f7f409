//! A pod with only the fields that plans read. A cluster has many pods, most of them alike: parts
//! that pods of one template share are kept once.

pub mod attempt;
mod pool;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod as Whole, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

pub use self::attempt::Attempt;
pub use self::pool::Pool;
use crate::objects::{Map, Meta, Object, revision_of};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Whole")]
pub struct Pod {
    /// Metadata.
    pub metadata: Metadata,
    /// Spec without the node name; resources are those that count during an in-place resize.
    pub spec: Option<Arc<PodSpec>>,
    /// The node that it is bound to; empty when there is none.
    pub node: Arc<str>,
    /// Status.
    pub status: Status,
    /// Fields that only the Job controller reads, for pods of Jobs.
    pub attempt: Option<Box<Attempt>>,
}

/// Metadata of pods, and of other objects whose plans read nothing else.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ObjectMeta")]
pub struct Metadata {
    name: Box<str>,
    namespace: Arc<str>,
    uid: Arc<str>,
    revision: u64,
    deleting: bool,
    labels: Option<Arc<Map>>,
    owners: Option<Arc<[OwnerReference]>>,
    finalizers: Option<Arc<[String]>>,
    /// Creation timestamp.
    pub created: Option<Timestamp>,
    /// Generation of the spec; 0 where none is set.
    pub generation: i64,
    /// Value of the annotation `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
}

/// A pod's status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// Its phase; empty when it has none yet.
    pub phase: Arc<str>,
    /// Its addresses of all families.
    pub addresses: Box<[Box<str>]>,
    /// True if its node evicted it (`PodIsEvicted` of `pkg/kubelet/eviction/helpers.go`).
    pub evicted: bool,
    /// True if one of its containers may be running (`notRunning`, `pkg/volume/util/util.go`).
    pub running: bool,
    /// True if the Ready condition is True.
    pub ready: bool,
    /// Transition time of the Ready condition, if it is True and has one.
    pub ready_since: Option<Timestamp>,
    /// Transition time of the Ready condition, if it is False.
    pub unready_since: Option<Timestamp>,
    /// Start time.
    pub started: Option<Timestamp>,
    /// Transition time of the `DisruptionTarget` condition, if it is True and another than the
    /// pod's agent set it.
    pub disrupted: Option<Box<Timestamp>>,
    /// The `PodScheduled` condition, where it is set and not True.
    pub unscheduled: Option<Box<Unscheduled>>,
    /// The nominated node.
    pub nominated: Option<Box<str>>,
    /// Highest restart counts of its containers and of its sidecars.
    pub restarts: (i32, i32),
}

/// The condition `PodScheduled`, when it is not True.
#[derive(Debug, Clone, PartialEq)]
pub struct Unscheduled {
    /// True if the condition is False, not Unknown.
    pub denied: bool,
    /// Reason of the condition.
    pub reason: Option<String>,
    /// Message of the condition.
    pub message: Option<String>,
    /// Last transition time.
    pub since: Option<Timestamp>,
    /// Observed generation; 0 where none is set.
    pub generation: i64,
}

impl Pod {
    /// Deduplicates shared parts of the pod.
    pub fn share(&mut self, pool: &mut Pool) {
        self.metadata.share(pool);
        pool.texts.share(&mut self.node);
        pool.texts.share(&mut self.status.phase);
        if let Some(spec) = &mut self.spec {
            pool.specs.share(spec);
        }
    }
}

impl Metadata {
    /// The generation to set in conditions; none where the object has none.
    pub fn observed(&self) -> Option<i64> {
        Some(self.generation).filter(|generation| *generation > 0)
    }

    /// Deduplicates shared parts of the metadata.
    pub fn share(&mut self, pool: &mut Pool) {
        pool.texts.share(&mut self.namespace);
        if let Some(labels) = &mut self.labels {
            pool.labels.share(labels);
        }
        if let Some(owners) = &mut self.owners {
            pool.owners.share(owners);
        }
        if let Some(finalizers) = &mut self.finalizers {
            pool.finalizers.share(finalizers);
        }
    }
}

impl From<Whole> for Pod {
    fn from(whole: Whole) -> Self {
        let attempt = Attempt::of(&whole);
        let told = whole.spec.as_ref().zip(whole.status.as_ref());
        let told = told.and_then(|(spec, status)| api::pod::as_told(spec, status));
        let mut spec = told.or(whole.spec);
        let node = spec.as_mut().and_then(|spec| spec.node_name.take()).unwrap_or_default();
        let status = whole.status.map(|status| Status::of(status, spec.as_ref()));
        Self {
            metadata: whole.metadata.into(),
            spec: spec.map(|spec| Arc::new(trimmed(spec))),
            node: node.into(),
            status: status.unwrap_or_default(),
            attempt,
        }
    }
}

impl From<ObjectMeta> for Metadata {
    fn from(whole: ObjectMeta) -> Self {
        let cost = whole.annotations.as_ref().and_then(|annotations| annotations.get(COST));
        Self {
            revision: revision_of(&whole),
            deletion_cost: cost.and_then(|text| text.parse().ok()).unwrap_or(0),
            name: whole.name.unwrap_or_default().into(),
            namespace: whole.namespace.unwrap_or_default().into(),
            uid: whole.uid.unwrap_or_default().into(),
            deleting: whole.deletion_timestamp.is_some(),
            labels: whole.labels.filter(|labels| !labels.is_empty()).map(Arc::new),
            owners: whole
                .owner_references
                .filter(|owners| !owners.is_empty())
                .map(Arc::from),
            finalizers: whole.finalizers.filter(|held| !held.is_empty()).map(Arc::from),
            created: whole.creation_timestamp.map(|time| time.0),
            generation: whole.generation.unwrap_or(0),
        }
    }
}

impl Status {
    fn of(whole: PodStatus, spec: Option<&PodSpec>) -> Self {
        let conditions = whole.conditions.unwrap_or_default();
        let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
        let since = |condition: &PodCondition| condition.last_transition_time.as_ref().map(|time| time.0);
        let ready = find("Ready").filter(|ready| ready.status == "True");
        let unready = find("Ready").filter(|ready| ready.status == "False");
        let unscheduled = find("PodScheduled").filter(|scheduled| scheduled.status != "True");
        let disrupted = find("DisruptionTarget")
            .filter(|target| target.status == "True" && target.reason.as_deref() != Some("TerminationByKubelet"));
        let all = whole.pod_ips.unwrap_or_default().into_iter().map(|address| address.ip);
        let mut addresses: Vec<String> = all.collect();
        if addresses.is_empty() {
            addresses.extend(whole.pod_ip);
        }
        addresses.retain(|address| !address.is_empty());
        let init_containers = spec
            .and_then(|spec| spec.init_containers.as_deref())
            .unwrap_or_default();
        let is_sidecar = |status: &&ContainerStatus| {
            let mut same = init_containers.iter().filter(|own| own.name == status.name);
            same.any(api::pod::is_sidecar)
        };
        let containers = whole.container_statuses.unwrap_or_default();
        let init_statuses = whole.init_container_statuses.unwrap_or_default();
        let ephemeral = whole.ephemeral_container_statuses.unwrap_or_default();
        let failed = whole.phase.as_deref() == Some("Failed");
        Self {
            running: [&containers, &init_statuses, &ephemeral]
                .into_iter()
                .flatten()
                .any(may_run),
            evicted: failed && whole.reason.as_deref() == Some("Evicted"),
            ready: ready.is_some(),
            ready_since: ready.and_then(since),
            unready_since: unready.and_then(since),
            started: whole.start_time.map(|time| time.0),
            disrupted: disrupted.and_then(since).map(Box::new),
            unscheduled: unscheduled.map(|condition| {
                Box::new(Unscheduled {
                    denied: condition.status == "False",
                    reason: condition.reason.clone(),
                    message: condition.message.clone(),
                    since: since(condition),
                    generation: condition.observed_generation.unwrap_or(0),
                })
            }),
            nominated: whole
                .nominated_node_name
                .filter(|node| !node.is_empty())
                .map(String::into_boxed_str),
            phase: whole.phase.unwrap_or_default().into(),
            addresses: addresses.into_iter().map(String::into_boxed_str).collect(),
            restarts: (
                most_restarts(containers.iter()),
                most_restarts(init_statuses.iter().filter(is_sidecar)),
            ),
        }
    }
}

/// True if a container has neither ended nor waits to begin.
fn may_run(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    state.is_none_or(|state| state.terminated.is_none() && state.waiting.is_none())
}

fn most_restarts<'a>(statuses: impl Iterator<Item = &'a ContainerStatus>) -> i32 {
    statuses.map(|status| status.restart_count).max().unwrap_or(0)
}

/// Trims a spec to the fields that plans read.
fn trimmed(mut spec: PodSpec) -> PodSpec {
    let container = |container: Container| Container {
        name: container.name,
        image: container.image,
        ports: container.ports,
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        ..Container::default()
    };
    let mut volumes = spec.volumes.take().unwrap_or_default();
    volumes.retain(|volume| {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || volume.image.is_some()
    });
    // Vectors grow to at least four items while they are deserialized; these are rebuilt with their
    // exact length.
    PodSpec {
        affinity: spec.affinity,
        containers: spec.containers.into_iter().map(container).collect(),
        hostname: spec.hostname,
        init_containers: spec
            .init_containers
            .map(|containers| containers.into_iter().map(container).collect()),
        node_selector: spec.node_selector,
        overhead: spec.overhead,
        preemption_policy: spec.preemption_policy,
        priority: spec.priority,
        resources: spec.resources,
        scheduler_name: spec.scheduler_name,
        scheduling_gates: spec.scheduling_gates,
        subdomain: spec.subdomain,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        volumes: Some(volumes).filter(|volumes| !volumes.is_empty()),
        ..PodSpec::default()
    }
}

impl Meta for Metadata {
    fn name(&self) -> &str {
        &self.name
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn resource_version(&self) -> Option<String> {
        (self.revision > 0).then(|| self.revision.to_string())
    }

    fn labels(&self) -> Option<&Map> {
        self.labels.as_deref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owners.as_deref().unwrap_or_default()
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.deleting
    }
}

impl Object for Pod {
    type Meta = Metadata;

    fn meta(&self) -> &Metadata {
        &self.metadata
    }
}

/// The pod's phase, empty if it has none yet.
pub fn phase(pod: &Pod) -> &str {
    &pod.status.phase
}

/// True if a controller counts the pod: neither finished nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !pod.metadata.is_deleting()
}

/// True if none of the pod's containers will run again.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The node the pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    Some(&*pod.node).filter(|node| !node.is_empty())
}

/// True if the pod's Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status.ready
}

/// Time since which the pod has been ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.status.ready_since
}

/// Time until a ready pod counts as available: zero if it already does, `None` if it is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let due = ready_since(pod)?
        .as_second()
        .saturating_add(i64::from(min_ready_seconds));
    Some(Duration::from_secs(
        u64::try_from(due.saturating_sub(now.as_second())).unwrap_or(0),
    ))
}
