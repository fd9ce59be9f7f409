//! Controller revisions: past templates of a `StatefulSet` or `DaemonSet`
//! (`pkg/controller/history`).

use std::collections::BTreeMap;

use api::decode;
use api::pod::defaults::set_template_defaults;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::objects::{Map, controlled_by, name, target};
use crate::step::{CONTROLLER_REVISIONS, Outcome, Step, Target};

/// Label of pods with the revision that they were created from, and label of a DaemonSet's
/// revisions.
pub(crate) const REVISION: &str = "controller-revision-hash";

/// Data of a revision: the strategic merge patch that restores the template.
pub(crate) fn data(template: &PodTemplateSpec) -> Value {
    let mut template = json!(template);
    if let Some(members) = template.as_object_mut() {
        members.insert("$patch".to_owned(), "replace".into());
    }
    json!({ "spec": { "template": template } })
}

/// Returns the template that a revision restores.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    decode::template(revision.data.as_ref()?.0.pointer("/spec/template")?)
}

/// True if a revision restores `wanted`. Fields that a revision of an older server lacks are
/// defaults by now: they start no rollout (`setMatchesLatestExistingRevision` in
/// `pkg/controller/statefulset/stateful_set_control.go`).
pub(crate) fn holds(revision: &ControllerRevision, wanted: &PodTemplateSpec) -> bool {
    let Some(mut found) = template(revision) else {
        return false;
    };
    found == *wanted || {
        set_template_defaults(&mut found);
        found == *wanted
    }
}

/// Oldest first; age and name break ties.
pub(crate) fn sort(revisions: &mut [&ControllerRevision]) {
    revisions.sort_by(|a, b| {
        let key = |revision: &ControllerRevision| (revision.revision, revision.metadata.creation_timestamp.clone());
        key(a).cmp(&key(b)).then_with(|| name(*a).cmp(name(*b)))
    });
}

/// Number of the next revision.
pub(crate) fn next_number(revisions: &[&ControllerRevision]) -> i64 {
    let newest = revisions.iter().map(|revision| revision.revision).max();
    newest.unwrap_or(0).saturating_add(1)
}

/// A revision to create.
pub(crate) struct New<'a> {
    pub(crate) name: String,
    pub(crate) hash_label: (&'a str, String),
    pub(crate) template: &'a PodTemplateSpec,
    pub(crate) annotations: Option<&'a Map>,
    pub(crate) number: i64,
}

/// Creates a revision.
pub(crate) fn create(owner: &Target, new: New<'_>) -> Step {
    let own = new
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    let mut labels: BTreeMap<String, String> = own.cloned().unwrap_or_default();
    labels.insert(new.hash_label.0.to_owned(), new.hash_label.1);
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(new.name),
            namespace: Some(owner.namespace.clone()),
            labels: Some(labels),
            annotations: new.annotations.filter(|annotations| !annotations.is_empty()).cloned(),
            owner_references: Some(vec![controlled_by(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data(new.template))),
        revision: new.number,
    };
    Step::Create {
        resource: CONTROLLER_REVISIONS,
        namespace: owner.namespace.clone(),
        body: Box::new(json!(revision)),
        outcome: Outcome::default(),
    }
}

/// Patches exactly this version of a revision.
pub(crate) fn patch(revision: &ControllerRevision, mut body: Value) -> Step {
    let metadata = &revision.metadata;
    let version = json!({ "metadata": { "uid": metadata.uid, "resourceVersion": metadata.resource_version } });
    crate::workloads::rollout::merge(&mut body, &version);
    target(CONTROLLER_REVISIONS, revision).merge(body)
}

/// Makes a revision the newest again.
pub(crate) fn renumber(revision: &ControllerRevision, number: i64) -> Step {
    patch(revision, json!({ "revision": number }))
}

/// Deletes a revision.
pub(crate) fn delete(revision: &ControllerRevision) -> Step {
    target(CONTROLLER_REVISIONS, revision).delete()
}
