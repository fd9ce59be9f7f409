//! Which objects a controller manages: adopt what matches and has no manager, release what no longer matches.

use k8s_openapi::{
    Metadata,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde_json::json;

use crate::{
    objects::{controlled_by, controller_of, selects, target},
    step::{Outcome, PatchKind, Resource, Step, Target},
};

/// What a controller manages, and the patches that make it so.
#[derive(Debug)]
pub struct Claim<'a, K> {
    /// Managed and matching.
    pub owned: Vec<&'a K>,
    /// Adoptions and releases; after them the plan must be made again.
    pub steps: Vec<Step>,
}

/// Sorts `candidates` by who manages them. An owner that is being deleted adopts nothing.
pub fn claim<'a, K: Metadata<Ty = ObjectMeta>>(
    owner: &Target,
    owner_deleted: bool,
    selector: &LabelSelector,
    resource: Resource,
    candidates: impl IntoIterator<Item = &'a K>,
) -> Claim<'a, K> {
    let mut claim = Claim {
        owned: Vec::new(),
        steps: Vec::new(),
    };
    for object in candidates {
        let metadata = object.metadata();
        let matching = selects(selector, metadata.labels.as_ref());
        match controller_of(metadata) {
            Some(controller) if controller.uid != owner.uid => {}
            Some(_) if matching => claim.owned.push(object),
            Some(_) if owner_deleted => {}
            Some(_) => claim.steps.push(release(owner, resource, object)),
            None if !matching || owner_deleted || metadata.deletion_timestamp.is_some() => {}
            None => claim.steps.push(adopt(owner, resource, object)),
        }
    }
    claim
}

fn adopt<K: Metadata<Ty = ObjectMeta>>(owner: &Target, resource: Resource, object: &K) -> Step {
    let mut owners = object.metadata().owner_references.clone().unwrap_or_default();
    owners.retain(|other| other.uid != owner.uid);
    owners.push(controlled_by(owner));
    owners_patch(resource, object, &json!(owners))
}

fn release<K: Metadata<Ty = ObjectMeta>>(owner: &Target, resource: Resource, object: &K) -> Step {
    let mut owners = object.metadata().owner_references.clone().unwrap_or_default();
    owners.retain(|other| other.uid != owner.uid);
    owners_patch(resource, object, &json!(owners))
}

/// Replaces the owner references of exactly this revision of the object.
pub fn owners_patch<K: Metadata<Ty = ObjectMeta>>(resource: Resource, object: &K, owners: &serde_json::Value) -> Step {
    let metadata = object.metadata();
    Step::Patch {
        target: target(resource, object),
        subresource: None,
        kind: PatchKind::Merge,
        body: Box::new(json!({ "metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version, "ownerReferences": owners,
        }})),
        outcome: Outcome::default(),
    }
}
