//! Which objects a controller manages: adopt what matches and has no manager, release what no longer matches.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::{
    objects::{Meta as _, Object, controlled_by, controller_of, target},
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

/// Sorts `candidates` by who manages them and whether they `matches`. An owner that is being deleted adopts nothing.
pub fn claim<'a, K: Object>(
    owner: &Target,
    owner_deleted: bool,
    matches: impl Fn(&K) -> bool,
    resource: Resource,
    candidates: impl IntoIterator<Item = &'a K>,
) -> Claim<'a, K> {
    let mut claim = Claim {
        owned: Vec::new(),
        steps: Vec::new(),
    };
    for object in candidates {
        let metadata = object.meta();
        let matching = matches(object);
        match controller_of(metadata) {
            Some(controller) if controller.uid != owner.uid => {}
            Some(_) if matching => claim.owned.push(object),
            Some(_) if owner_deleted => {}
            Some(_) => claim.steps.push(release(owner, resource, object)),
            None if !matching || owner_deleted || metadata.is_deleting() => {}
            None => claim.steps.push(adopt(owner, resource, object)),
        }
    }
    claim
}

fn adopt<K: Object>(owner: &Target, resource: Resource, object: &K) -> Step {
    let mut owners: Vec<OwnerReference> = object.meta().owners().to_vec();
    owners.retain(|other| other.uid != owner.uid);
    owners.push(controlled_by(owner));
    owners_patch(resource, object, &json!(owners))
}

fn release<K: Object>(owner: &Target, resource: Resource, object: &K) -> Step {
    let mut owners: Vec<OwnerReference> = object.meta().owners().to_vec();
    owners.retain(|other| other.uid != owner.uid);
    owners_patch(resource, object, &json!(owners))
}

/// Replaces the owner references of exactly this revision of the object.
pub fn owners_patch<K: Object>(resource: Resource, object: &K, owners: &serde_json::Value) -> Step {
    let metadata = object.meta();
    Step::Patch {
        target: target(resource, object),
        subresource: None,
        kind: PatchKind::Merge,
        body: Box::new(json!({ "metadata": {
            "uid": metadata.uid(), "resourceVersion": metadata.resource_version(), "ownerReferences": owners,
        }})),
        outcome: Outcome::default(),
    }
}
