//! The Deployment controller: creates, scales and removes ReplicaSets, and computes the status.
//!
//! The rules are upstream's, with one stricter count: the size of a ReplicaSet is the larger one of
//! `spec.replicas` and `status.replicas`, so that live pods never exceed `replicas + maxSurge`.

mod annotations;
mod condition;
mod create;
mod recreate;
mod rolling;
mod scale;
mod settings;
mod status;
#[cfg(test)]
mod tests;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::objects::{controller_of, name, selects, target, uid};
use crate::pod::Pod;
use crate::step::{DEPLOYMENTS, PatchKind, Plan, REPLICA_SETS, Step, Target};
use crate::workloads::claim::claim;
pub(crate) use settings::scaled;
pub use settings::{Settings, Strategy};

/// Label that distinguishes the pods of different templates.
pub const TEMPLATE_HASH: &str = "pod-template-hash";

/// Input of the Deployment controller.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The Deployment.
    pub deployment: &'a Deployment,
    /// All ReplicaSets of its namespace: some are its own, some may be adopted, and names must not
    /// collide.
    pub replica_sets: &'a [&'a ReplicaSet],
    /// All pods of the ReplicaSets it manages; only Recreate looks at them.
    pub pods: &'a [&'a Pod],
    /// The server's last refusal to create the new ReplicaSet.
    pub failure: Option<&'a Failure>,
}

/// Reason why the last attempt to create an object failed, or to delete a set's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// True for a deletion.
    pub deletion: bool,
    /// The machine-readable reason, `AlreadyExists`.
    pub reason: String,
    /// The server's message.
    pub message: String,
}

/// A ReplicaSet and its desired size.
#[derive(Debug, Clone)]
struct Sized<'a> {
    set: &'a ReplicaSet,
    replicas: i32,
}

impl<'a> Sized<'a> {
    fn new(set: &'a ReplicaSet) -> Self {
        Self {
            set,
            replicas: spec_replicas(set),
        }
    }

    /// The larger one of desired and existing pods.
    fn occupied(&self) -> i32 {
        self.replicas.max(status_replicas(self.set))
    }

    fn available(&self) -> i32 {
        self.set
            .status
            .as_ref()
            .and_then(|status| status.available_replicas)
            .unwrap_or(0)
    }
}

/// State of one Deployment while its plan is made.
struct View<'a> {
    deployment: &'a Deployment,
    owner: Target,
    settings: Settings,
    new: Option<Sized<'a>>,
    old: Vec<Sized<'a>>,
    names: &'a [&'a ReplicaSet],
    pods: &'a [&'a Pod],
    failure: Option<&'a Failure>,
    now: Timestamp,
}

/// Makes the plan.
pub fn plan(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let deployment = snapshot.deployment;
    let mut plan = Plan::default();
    let Some(settings) = Settings::of(deployment) else {
        return plan;
    };
    let owner = target(DEPLOYMENTS, deployment);
    let deleted = deployment.metadata.deletion_timestamp.is_some();
    let claimed = claim(
        &owner,
        deleted,
        |set| selects(&settings.selector, set.metadata.labels.as_ref()),
        REPLICA_SETS,
        snapshot.replica_sets.iter().copied(),
    );
    if !claimed.steps.is_empty() {
        plan.stage(claimed.steps);
        return plan;
    }
    let mut sets = claimed.owned;
    sets.sort_by(|a, b| age_order(a, b));
    let current = find_new(deployment, &sets);
    let new = current.map(Sized::new);
    let old = sets
        .iter()
        .filter(|set| current.is_none_or(|new| uid(new) != uid(**set)))
        .map(|set| Sized::new(set));
    let old: Vec<_> = old.collect();
    let view = View {
        deployment,
        owner,
        settings,
        new,
        old,
        names: snapshot.replica_sets,
        pods: snapshot.pods,
        failure: snapshot.failure,
        now,
    };
    if deleted {
        status::report(&view, &mut plan);
        return plan;
    }
    view.progress(&mut plan);
    plan
}

impl View<'_> {
    /// Adds the first step that is due; every change leads to a new plan.
    fn progress(&self, plan: &mut Plan) {
        if let Some(stamps) = annotations::stamp(self) {
            plan.stage(stamps);
            return;
        }
        if self.settings.paused {
            let steps = scale::proportionally(self);
            if steps.is_empty() {
                plan.stage(annotations::clean_up(self));
            }
            plan.stage(steps);
            status::report(self, plan);
            return;
        }
        let steps = if scale::is_due(self) {
            scale::proportionally(self)
        } else {
            match self.settings.strategy {
                Strategy::Recreate => recreate::steps(self),
                Strategy::RollingUpdate { .. } => rolling::steps(self),
            }
        };
        if steps.is_empty() && status::is_complete(self) {
            plan.stage(annotations::clean_up(self));
        }
        plan.stage(steps);
        status::report(self, plan);
    }

    /// All ReplicaSets, oldest first; the new one last.
    fn all(&self) -> impl Iterator<Item = &Sized<'_>> {
        self.old.iter().chain(&self.new)
    }

    fn name(&self) -> &str {
        &self.owner.name
    }
}

fn spec_replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn status_replicas(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

/// Oldest first, then by name.
fn age_order(a: &ReplicaSet, b: &ReplicaSet) -> std::cmp::Ordering {
    (&a.metadata.creation_timestamp, name(a)).cmp(&(&b.metadata.creation_timestamp, name(b)))
}

/// The oldest ReplicaSet that has the Deployment's template.
fn find_new<'a>(deployment: &Deployment, sets: &[&'a ReplicaSet]) -> Option<&'a ReplicaSet> {
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template)?;
    sets.iter().copied().find(|set| {
        set.spec
            .as_ref()
            .and_then(|spec| spec.template.as_ref())
            .is_some_and(|template| same(template, wanted))
    })
}

/// True if two templates are the same apart from the hash label.
fn same(template: &PodTemplateSpec, wanted: &PodTemplateSpec) -> bool {
    let plain = |template: &PodTemplateSpec| {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        if let Some(labels) = metadata.labels.as_mut() {
            labels.remove(TEMPLATE_HASH);
        }
        metadata.labels = metadata.labels.filter(|labels| !labels.is_empty());
        metadata.annotations = metadata.annotations.filter(|annotations| !annotations.is_empty());
        metadata.creation_timestamp = None;
        metadata
    };
    template.spec == wanted.spec && plain(template) == plain(wanted)
}

/// True if `deployment` controls `set`.
pub fn manages(deployment: &Deployment, set: &ReplicaSet) -> bool {
    controller_of(&set.metadata).is_some_and(|owner| owner.uid == uid(deployment))
}

/// A merge patch for exactly this revision of the Deployment.
fn patch_deployment(view: &View<'_>, subresource: Option<&'static str>, mut body: Value) -> Step {
    let metadata = &view.deployment.metadata;
    merge(
        &mut body,
        &json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version } }),
    );
    view.owner.clone().patch(subresource, PatchKind::Merge, body)
}

/// Merges one object into another, recursively.
pub(crate) fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
