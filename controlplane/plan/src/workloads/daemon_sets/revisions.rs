//! The revisions of a DaemonSet (`constructHistory` in `pkg/controller/daemon/update.go`).

use api::names;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSetSpec};
use serde_json::json;

use super::Snapshot;
use crate::objects::{Meta as _, name, target};
use crate::pod::Pod;
use crate::step::{PODS, Step, Target};
use crate::workloads::history::{self, New, REVISION};

/// The revisions of a DaemonSet.
pub(super) struct Revisions<'a> {
    /// Hash of the current template.
    pub(super) hash: String,
    /// Revisions of other templates, oldest first.
    old: Vec<&'a ControllerRevision>,
    /// Steps that create the current revision, if it does not exist.
    pub(super) steps: Vec<Step>,
}

impl<'a> Revisions<'a> {
    /// Finds the revisions among `known`, the set's own. The error holds steps that must be done
    /// first.
    pub(super) fn of(
        snapshot: &Snapshot<'a>,
        spec: &DaemonSetSpec,
        owner: &Target,
        known: Vec<&'a ControllerRevision>,
        pods: &[&Pod],
    ) -> Result<Self, Vec<Step>> {
        let nameless = known.iter().filter(|revision| own_hash(revision).is_none());
        let label = |revision: &&ControllerRevision| {
            history::patch(
                revision,
                json!({ "metadata": { "labels": { REVISION: name(*revision) } } }),
            )
        };
        let labels: Vec<Step> = nameless.map(label).collect();
        if !labels.is_empty() {
            return Err(labels);
        }
        let (mut current, mut old): (Vec<_>, Vec<_>) = known
            .into_iter()
            .partition(|revision| history::holds(revision, &spec.template));
        history::sort(&mut current);
        history::sort(&mut old);
        let number = history::next_number(&old);
        let Some(kept) = current.pop() else {
            let (hash, steps) = create(snapshot, spec, owner, number)?;
            return Ok(Self { hash, old, steps });
        };
        let hash = own_hash(kept).cloned().unwrap_or_default();
        if !current.is_empty() {
            return Err(deduplicate(&hash, &current, pods));
        }
        let steps = if kept.revision < number {
            vec![history::renumber(kept, number)]
        } else {
            Vec::new()
        };
        Ok(Self { hash, old, steps })
    }

    /// Deletes the oldest unused revisions beyond the limit (`cleanupHistory`).
    pub(super) fn superfluous(&self, spec: &DaemonSetSpec, pods: &[&Pod]) -> Vec<Step> {
        let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let excess = self.old.len().saturating_sub(limit);
        let is_live = |revision: &ControllerRevision| pods.iter().any(|pod| hash(pod) == own_hash(revision));
        let gone = self.old.iter().filter(|revision| !is_live(revision)).take(excess);
        gone.filter(|revision| revision.metadata.deletion_timestamp.is_none())
            .map(|revision| history::delete(revision))
            .collect()
    }
}

/// Creates the revision of the current template; if its name is taken, the next plan adds to the
/// collision count.
fn create(
    snapshot: &Snapshot<'_>,
    spec: &DaemonSetSpec,
    owner: &Target,
    number: i64,
) -> Result<(String, Vec<Step>), Vec<Step>> {
    let collisions = snapshot.set.status.as_ref().and_then(|status| status.collision_count);
    let hash = names::pod_template_hash(&spec.template, collisions);
    let name = format!("{}-{hash}", owner.name);
    let mut taken = snapshot
        .revisions
        .iter()
        .filter(|other| crate::objects::name(**other) == name);
    match taken.next() {
        Some(other) if history::holds(other, &spec.template) => Ok((hash, Vec::new())),
        Some(_) => {
            let next = collisions.unwrap_or(0).saturating_add(1);
            Err(vec![record_collisions(snapshot, owner, next)])
        }
        None => {
            let new = New {
                name,
                hash_label: (REVISION, hash.clone()),
                template: &spec.template,
                annotations: snapshot.set.metadata.annotations.as_ref(),
                number,
            };
            Ok((hash, vec![history::create(owner, new)]))
        }
    }
}

fn record_collisions(snapshot: &Snapshot<'_>, owner: &Target, collisions: i32) -> Step {
    let version = &snapshot.set.metadata.resource_version;
    owner.clone().merge_status(json!({
        "metadata": { "uid": owner.uid, "resourceVersion": version },
        "status": { "collisionCount": collisions },
    }))
}

/// Relabels pods with the hash of the kept revision, then deletes its duplicates
/// (`dedupCurHistories`).
fn deduplicate(hash_kept: &str, doubles: &[&ControllerRevision], pods: &[&Pod]) -> Vec<Step> {
    let other = pods.iter().filter(|pod| hash(pod).is_none_or(|own| own != hash_kept));
    let of_double = other.filter(|pod| doubles.iter().any(|double| own_hash(double) == hash(pod)));
    let relabel = |pod: &&Pod| {
        target(PODS, *pod)
            .merge(json!({ "metadata": { "uid": pod.metadata.uid(), "labels": { REVISION: hash_kept } } }))
    };
    let relabeled: Vec<Step> = of_double.map(relabel).collect();
    if relabeled.is_empty() {
        return doubles.iter().map(|double| history::delete(double)).collect();
    }
    relabeled
}

fn own_hash(revision: &ControllerRevision) -> Option<&String> {
    revision.metadata.labels.as_ref()?.get(REVISION)
}

/// Hash of the revision that a pod was created from.
pub(super) fn hash(pod: &Pod) -> Option<&String> {
    pod.metadata.labels()?.get(REVISION)
}
