//! Revisions, the annotations that record them, and cleanup of old ReplicaSets.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::{Map, Value, json};

use super::{Sized, View, patch_deployment, status_replicas};
use crate::objects::{annotation, target};
use crate::step::{Outcome, REPLICA_SETS, Step};

/// Revision number of a Deployment's template.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier revisions of a ReplicaSet that was rolled back to.
pub(super) const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the Deployment when the ReplicaSet was last scaled.
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The same plus `maxSurge`.
pub(super) const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";

const HISTORY_LIMIT: usize = 2000;
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAXIMUM,
    "deprecated.deployment.rollback.to",
];

/// A ReplicaSet's revision, 0 if it has none.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// Lowest revision that the new ReplicaSet may have.
pub(super) fn next_revision(view: &View<'_>) -> i64 {
    view.old
        .iter()
        .map(|old| revision(old.set))
        .max()
        .unwrap_or(0)
        .saturating_add(1)
}

/// The annotations of a ReplicaSet that is being created.
pub(super) fn initial(view: &View<'_>) -> BTreeMap<String, String> {
    let mut annotations = copied(view);
    annotations.insert(REVISION.to_owned(), next_revision(view).to_string());
    annotations.extend(sizes(view));
    annotations
}

/// Annotations with the sizes that a scaled ReplicaSet records.
pub(super) fn sizes(view: &View<'_>) -> [(String, String); 2] {
    let desired = view.settings.replicas;
    [
        (DESIRED.to_owned(), desired.to_string()),
        (
            MAXIMUM.to_owned(),
            desired.saturating_add(view.settings.surge()).to_string(),
        ),
    ]
}

/// True if the recorded sizes are outdated.
pub(super) fn sizes_differ(view: &View<'_>, set: &ReplicaSet) -> bool {
    sizes(view)
        .iter()
        .any(|(key, value)| annotation(&set.metadata, key) != Some(value))
}

fn copied(view: &View<'_>) -> BTreeMap<String, String> {
    let own = view.deployment.metadata.annotations.iter().flatten();
    own.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Updates the annotations of the new ReplicaSet and the Deployment; `None` if they are current.
pub(super) fn stamp(view: &View<'_>) -> Option<Vec<Step>> {
    let new = view.new.as_ref()?;
    let mut steps = Vec::new();
    let mut changes: Map<String, Value> = Map::new();
    for (key, value) in copied(view) {
        if annotation(&new.set.metadata, &key) != Some(&value) {
            changes.insert(key, value.into());
        }
    }
    let (have, want) = (revision(new.set), next_revision(view));
    let current = have.max(want);
    if have < want {
        changes.insert(REVISION.to_owned(), want.to_string().into());
        if have > 0 {
            changes.insert(HISTORY.to_owned(), history(new, have).into());
        }
    }
    let seconds = new
        .set
        .spec
        .as_ref()
        .and_then(|spec| spec.min_ready_seconds)
        .unwrap_or(0);
    let mut body = json!({});
    if !changes.is_empty() {
        super::merge(&mut body, &json!({ "metadata": { "annotations": changes } }));
    }
    if seconds != view.settings.min_ready_seconds {
        super::merge(
            &mut body,
            &json!({ "spec": { "minReadySeconds": view.settings.min_ready_seconds } }),
        );
    }
    if body != json!({}) {
        steps.push(patch_set(new, body));
    }
    if annotation(&view.deployment.metadata, REVISION) != Some(&current.to_string()) {
        let body = json!({ "metadata": { "annotations": { REVISION: current.to_string() } } });
        // Written with the status, as upstream does: the generation counts changes by users.
        steps.push(patch_deployment(view, Some("status"), body));
    }
    (!steps.is_empty()).then_some(steps)
}

/// The history with one more revision; the oldest ones are dropped if it becomes too long.
fn history(new: &Sized<'_>, revision: i64) -> String {
    let before = annotation(&new.set.metadata, HISTORY).unwrap_or_default();
    let mut revisions: Vec<String> = before
        .split(',')
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect();
    revisions.push(revision.to_string());
    while revisions.len() > 1 && revisions.iter().map(|text| text.len() + 1).sum::<usize>() > HISTORY_LIMIT {
        revisions.remove(0);
    }
    revisions.join(",")
}

/// A merge patch for exactly this revision of a ReplicaSet.
pub(super) fn patch_set(sized: &Sized<'_>, mut body: Value) -> Step {
    let metadata = &sized.set.metadata;
    super::merge(
        &mut body,
        &json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version } }),
    );
    target(REPLICA_SETS, sized.set).merge(body)
}

/// Deletes the oldest empty ReplicaSets beyond the limit.
pub(super) fn clean_up(view: &View<'_>) -> Vec<Step> {
    let Some(limit) = view.settings.history else {
        return Vec::new();
    };
    let mut kept: Vec<_> = view
        .old
        .iter()
        .filter(|old| old.set.metadata.deletion_timestamp.is_none())
        .collect();
    let excess = kept.len().saturating_sub(limit);
    kept.sort_by_key(|old| (revision(old.set), old.set.metadata.creation_timestamp.clone()));
    let unused = |old: &&&Sized<'_>| {
        let seen = old
            .set
            .status
            .as_ref()
            .and_then(|status| status.observed_generation)
            .unwrap_or(0);
        old.replicas == 0 && status_replicas(old.set) == 0 && seen >= old.set.metadata.generation.unwrap_or(0)
    };
    let oldest: Vec<_> = kept.into_iter().take(excess).collect();
    oldest
        .iter()
        .filter(unused)
        .map(|old| Step::Delete {
            target: target(REPLICA_SETS, old.set),
            resource_version: old.set.metadata.resource_version.clone(),
            propagation: None,
            grace_seconds: None,
            outcome: Outcome::default(),
        })
        .collect()
}
