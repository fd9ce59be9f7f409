//! Requests that a plan asks the driver to make.

use std::fmt;
use std::time::Duration;

use api::kind::{Kind, Scope, Scoped};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::{
    apps, authorization, autoscaling, batch, certificates, coordination, core, discovery, networking, policy, rbac,
    storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::Value;

/// A resource that controllers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version within the group.
    pub version: &'static str,
    /// The kind, `Pod`.
    pub kind: &'static str,
    /// The name in paths, `pods`.
    pub plural: &'static str,
    /// True if its objects live in a namespace.
    pub namespaced: bool,
}

impl Resource {
    /// The resource of a served kind.
    pub const fn of<K: Kind>() -> Self {
        Self {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::URL_PATH_SEGMENT,
            namespaced: matches!(<K::Scope as Scoped>::SCOPE, Scope::Namespaced),
        }
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

macro_rules! resources {
    ($($name:ident = $kind:ty;)*) => {$(
        #[doc = concat!("`", stringify!($kind), "`.")]
        pub const $name: Resource = Resource::of::<$kind>();
    )*};
}

resources! {
    ACCESS_REVIEWS = authorization::v1::SubjectAccessReview;
    ADDRESSES = networking::v1::IPAddress;
    API_SERVICES = APIService;
    ATTACHMENTS = storage::v1::VolumeAttachment;
    AUTOSCALERS = autoscaling::v2::HorizontalPodAutoscaler;
    CLAIMS = core::v1::PersistentVolumeClaim;
    CLUSTER_ROLES = rbac::v1::ClusterRole;
    CONFIG_MAPS = core::v1::ConfigMap;
    CONTROLLER_REVISIONS = apps::v1::ControllerRevision;
    CRON_JOBS = batch::v1::CronJob;
    CSI_CAPACITIES = storage::v1::CSIStorageCapacity;
    CSI_DRIVERS = storage::v1::CSIDriver;
    CSI_NODES = storage::v1::CSINode;
    DAEMON_SETS = apps::v1::DaemonSet;
    DEFINITIONS = CustomResourceDefinition;
    DEPLOYMENTS = apps::v1::Deployment;
    DISRUPTION_BUDGETS = policy::v1::PodDisruptionBudget;
    ENDPOINTS = core::v1::Endpoints;
    ENDPOINT_SLICES = discovery::v1::EndpointSlice;
    EVENTS = core::v1::Event;
    JOBS = batch::v1::Job;
    LEASES = coordination::v1::Lease;
    NAMESPACES = core::v1::Namespace;
    NODES = core::v1::Node;
    PODS = core::v1::Pod;
    REPLICATION_CONTROLLERS = core::v1::ReplicationController;
    REPLICA_SETS = apps::v1::ReplicaSet;
    RESOURCE_QUOTAS = core::v1::ResourceQuota;
    SECRETS = core::v1::Secret;
    SERVICES = core::v1::Service;
    SERVICE_ACCOUNTS = core::v1::ServiceAccount;
    SERVICE_RANGES = networking::v1::ServiceCIDR;
    SIGNING_REQUESTS = certificates::v1::CertificateSigningRequest;
    STATEFUL_SETS = apps::v1::StatefulSet;
    STORAGE_CLASSES = storage::v1::StorageClass;
    VOLUMES = core::v1::PersistentVolume;
    VOLUME_ATTRIBUTES_CLASSES = storage::v1::VolumeAttributesClass;
}

/// Object that a step refers to. The uid keeps a step from touching another object of the same
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Resource of the object.
    pub resource: Resource,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
}

impl Target {
    /// The reference that an event carries in `involvedObject`.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.resource.api_version()),
            kind: Some(self.resource.kind.to_owned()),
            namespace: Some(self.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// An event about the object.
    pub fn note(&self, severity: Severity, reason: &'static str, message: impl Into<String>) -> Note {
        Note {
            about: self.reference(),
            severity,
            reason,
            message: message.into(),
        }
    }

    /// PATCH of the object or a subresource, without events.
    pub fn patch(self, subresource: Option<&'static str>, kind: PatchKind, body: Value) -> Step {
        Step::Patch {
            target: self,
            subresource,
            kind,
            body: Box::new(body),
            outcome: Outcome::default(),
        }
    }

    /// Merge patch of the object.
    pub fn merge(self, body: Value) -> Step {
        self.patch(None, PatchKind::Merge, body)
    }

    /// Merge patch of the object's status.
    pub fn merge_status(self, body: Value) -> Step {
        self.patch(Some("status"), PatchKind::Merge, body)
    }

    /// Strategic merge patch of the object.
    pub fn strategic(self, body: Value) -> Step {
        self.patch(None, PatchKind::Strategic, body)
    }

    /// Strategic merge patch of the object's status.
    pub fn strategic_status(self, body: Value) -> Step {
        self.patch(Some("status"), PatchKind::Strategic, body)
    }

    /// DELETE of the object in any revision, with the defaults of its kind and without events.
    pub fn delete(self) -> Step {
        Step::Delete {
            target: self,
            resource_version: None,
            propagation: None,
            grace_seconds: None,
            outcome: Outcome::default(),
        }
    }
}

/// An event's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// `Normal`.
    Normal,
    /// `Warning`.
    Warning,
}

impl Severity {
    /// The `type` field of the event.
    pub fn text(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event about an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The object it is about.
    pub about: ObjectReference,
    /// Normal or Warning.
    pub severity: Severity,
    /// CamelCase reason.
    pub reason: &'static str,
    /// The message. In a step's `done` note `{}` stands for the name of the object, in `failed` for
    /// the error.
    pub message: String,
}

/// Events for a step's outcome.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Event when the step succeeded.
    pub done: Option<Note>,
    /// Events when the server refused the step.
    pub failed: Vec<Note>,
}

impl From<Option<Note>> for Outcome {
    fn from(done: Option<Note>) -> Self {
        Self {
            done,
            failed: Vec::new(),
        }
    }
}

/// Type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Lists merge by their keys.
    Strategic,
}

/// Deletion propagation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents are deleted afterwards.
    Background,
    /// Dependents are deleted first.
    Foreground,
    /// Dependents are kept.
    Orphan,
}

impl Propagation {
    /// The `propagationPolicy` field of `DeleteOptions`.
    pub fn text(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// A request that the driver makes.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// POST of a new object.
    Create {
        /// Resource of the object.
        resource: Resource,
        /// Empty for cluster-scoped objects.
        namespace: String,
        /// The whole object.
        body: Box<Value>,
        /// Events.
        outcome: Outcome,
    },
    /// PATCH. A `metadata.resourceVersion` in the body is a precondition: a conflict leads to a new
    /// plan.
    Patch {
        /// The object.
        target: Target,
        /// `status`, or `None` for the object itself.
        subresource: Option<&'static str>,
        /// Type of the patch.
        kind: PatchKind,
        /// The patch.
        body: Box<Value>,
        /// Events.
        outcome: Outcome,
    },
    /// DELETE by uid.
    Delete {
        /// The object.
        target: Target,
        /// Delete only this revision of it.
        resource_version: Option<String>,
        /// Propagation policy; `None` means the kind's default.
        propagation: Option<Propagation>,
        /// Seconds of grace; `None` leaves it to the object.
        grace_seconds: Option<i64>,
        /// Events.
        outcome: Outcome,
    },
    /// GET to learn whether exactly this object exists; without a uid, whether any object of that
    /// name does.
    Look(Target),
    /// GET of the scale of exactly this object, to learn its size.
    Measure(Target),
    /// Only an event.
    Event(Note),
}

impl Step {
    /// The step with these events.
    #[must_use]
    pub fn with(mut self, events: impl Into<Outcome>) -> Self {
        if let Self::Create { outcome, .. } | Self::Patch { outcome, .. } | Self::Delete { outcome, .. } = &mut self {
            *outcome = events.into();
        }
        self
    }
}

/// Short form for logs and tables.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create {
                resource,
                body,
                outcome,
                ..
            } => {
                let text = |pointer| body.pointer(pointer).and_then(Value::as_str);
                let name = text("/metadata/name")
                    .or_else(|| text("/metadata/generateName"))
                    .unwrap_or_default();
                write!(f, "create {} {name}", resource.kind)?;
                if let Some(replicas) = body.pointer("/spec/replicas") {
                    write!(f, " replicas={replicas}")?;
                }
                outcome.fmt(f)
            }
            Self::Patch {
                target,
                subresource,
                body,
                outcome,
                ..
            } => {
                write!(f, "patch {} {}", target.resource.kind, target.name)?;
                if let Some(subresource) = subresource {
                    write!(f, "/{subresource}")?;
                }
                if let Some(replicas) = body.pointer("/spec/replicas") {
                    write!(f, " replicas={replicas}")?;
                }
                outcome.fmt(f)
            }
            Self::Delete { target, outcome, .. } => {
                write!(f, "delete {} {}", target.resource.kind, target.name)?;
                outcome.fmt(f)
            }
            Self::Look(target) => write!(f, "look for {} {}", target.resource.kind, target.name),
            Self::Measure(target) => write!(f, "measure {} {}", target.resource.kind, target.name),
            Self::Event(note) => write!(f, "event {}: {}", note.reason, note.message),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.done
            .iter()
            .try_for_each(|note| write!(f, " ({}: {})", note.reason, note.message))
    }
}

/// Prints one step per line, stages separated by an arrow.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, stage) in self.stages.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " -> " })?;
            for (index, step) in stage.iter().enumerate() {
                f.write_str(if index == 0 { "" } else { ", " })?;
                step.fmt(f)?;
            }
        }
        let mut again = self.again.iter();
        again.try_for_each(|delay| write!(f, " again in {}s", delay.as_secs()))
    }
}

/// Stages of steps. The steps of a stage are sent together, so that they share a commit; a stage
/// begins when all steps of the previous one have succeeded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Stages in order.
    pub stages: Vec<Vec<Step>>,
    /// The last stage also begins if a stage from this one on failed.
    pub tolerant: Option<usize>,
    /// Plan again after this long even if nothing changes.
    pub again: Option<Duration>,
    /// The plan's writes are not urgent and will soon be superseded: they may wait this
    /// long.
    pub patience: Option<Duration>,
}

impl Plan {
    /// Appends a stage; an empty one is left out.
    pub fn stage(&mut self, steps: Vec<Step>) {
        if !steps.is_empty() {
            self.stages.push(steps);
        }
    }

    /// Appends the last stage, which also begins if a stage from `tolerant` on failed.
    pub fn close(&mut self, tolerant: usize, steps: Vec<Step>) {
        if !steps.is_empty() {
            self.stages.push(steps);
            self.tolerant = Some(tolerant);
        }
    }

    /// Asks to be planned again after `delay`, or sooner if that was asked for.
    pub fn again(&mut self, delay: Duration) {
        self.again = Some(self.again.map_or(delay, |before| before.min(delay)));
    }

    /// True if there is nothing to do now.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }
}
