//! Creation of the new ReplicaSet.

use std::collections::BTreeMap;

use api::names;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;

use super::{TEMPLATE_HASH, View, annotations, patch_deployment};
use crate::objects::controlled_by;
use crate::step::{Outcome, REPLICA_SETS, Severity, Step};

/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// Name of the ReplicaSet of the current template, and the hash in it (`generateReplicaSetName` of
/// `pkg/controller/deployment/sync.go`).
pub(super) fn name(view: &View<'_>) -> Option<(String, String)> {
    let spec = view.deployment.spec.as_ref()?;
    let hash = names::pod_template_hash(&spec.template, collisions(view));
    let most = LONGEST_NAME.saturating_sub(hash.len() + 1);
    let prefix = view.name().get(..most).unwrap_or(view.name());
    Some((format!("{prefix}-{hash}"), hash))
}

fn collisions(view: &View<'_>) -> Option<i32> {
    let status = view.deployment.status.as_ref();
    status.and_then(|status| status.collision_count)
}

/// Words for a refused creation of a ReplicaSet, in the event and in the condition.
pub(super) fn refused(name: &str, error: &str) -> String {
    format!("Failed to create new replica set {name:?}: {error}")
}

/// Creates the ReplicaSet of the current template with `replicas` pods.
pub(super) fn step(view: &View<'_>, replicas: i32) -> Option<Step> {
    let spec = view.deployment.spec.as_ref()?;
    let (name, hash) = name(view)?;
    if view.names.iter().any(|set| crate::objects::name(*set) == name) {
        // The hash belongs to another template: the next plan adds to the collision count.
        let collisions = collisions(view).unwrap_or(0).saturating_add(1);
        let body = json!({ "status": { "collisionCount": collisions } });
        return Some(patch_deployment(view, Some("status"), body));
    }
    let mut template = spec.template.clone();
    let metadata = template.metadata.get_or_insert_with(ObjectMeta::default);
    metadata
        .labels
        .get_or_insert_with(BTreeMap::new)
        .insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = metadata.labels.clone();
    let mut selector: LabelSelector = spec.selector.clone();
    selector
        .match_labels
        .get_or_insert_with(BTreeMap::new)
        .insert(TEMPLATE_HASH.to_owned(), hash);
    let set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(view.owner.namespace.clone()),
            labels,
            annotations: Some(annotations::initial(view)),
            owner_references: Some(vec![controlled_by(&view.owner)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: Some(view.settings.min_ready_seconds).filter(|seconds| *seconds > 0),
            selector,
            template: Some(template),
        }),
        status: None,
    };
    let note = |severity, reason, message| view.owner.note(severity, reason, message);
    let scaled = format!("Scaled up replica set {name} from 0 to {replicas}");
    Some(Step::Create {
        resource: REPLICA_SETS,
        namespace: view.owner.namespace.clone(),
        body: Box::new(json!(set)),
        outcome: Outcome {
            done: (replicas > 0).then(|| note(Severity::Normal, "ScalingReplicaSet", scaled)),
            failed: vec![note(Severity::Warning, "ReplicaSetCreateError", refused(&name, "{}"))],
        },
    })
}
