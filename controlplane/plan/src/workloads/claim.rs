//! Adoption and release: a controller adopts matching objects that have no controller, and releases
//! owned ones that no longer match.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::objects::{Meta as _, Object, controlled_by, controller_of, target};
use crate::step::{Resource, Step, Target};

/// Objects that a controller manages, and the patches that adopt or release others.
#[derive(Debug)]
pub struct Claim<'a, K> {
    /// Managed and matching.
    pub owned: Vec<&'a K>,
    /// Adoptions and releases; a new plan is needed after them.
    pub steps: Vec<Step>,
}

/// Sorts `candidates` by their controller and by whether they match. An owner that is being deleted
/// adopts nothing.
pub fn claim<'a, K: Object>(
    owner: &Target,
    owner_deleted: bool,
    matches: impl Fn(&K) -> bool,
    resource: Resource,
    candidates: impl IntoIterator<Item = &'a K>,
) -> Claim<'a, K> {
    claim_with(owner, owner_deleted, matches, resource, candidates, None)
}

/// Like [`claim`]; adopted objects get the finalizer, released ones lose it.
pub fn claim_with<'a, K: Object>(
    owner: &Target,
    owner_deleted: bool,
    matches: impl Fn(&K) -> bool,
    resource: Resource,
    candidates: impl IntoIterator<Item = &'a K>,
    finalizer: Option<&str>,
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
            Some(_) => claim.steps.push(transfer(owner, resource, object, finalizer, false)),
            None if !matching || owner_deleted || metadata.is_deleting() => {}
            None => claim.steps.push(transfer(owner, resource, object, finalizer, true)),
        }
    }
    claim
}

/// Adopts or releases.
fn transfer<K: Object>(owner: &Target, resource: Resource, object: &K, finalizer: Option<&str>, adopts: bool) -> Step {
    let metadata = object.meta();
    let mut owners: Vec<OwnerReference> = metadata.owners().to_vec();
    owners.retain(|other| other.uid != owner.uid);
    owners.extend(adopts.then(|| controlled_by(owner)));
    let held = finalizer.map(|finalizer| {
        let others = metadata
            .finalizers()
            .iter()
            .map(String::as_str)
            .filter(|held| *held != finalizer);
        others.chain(adopts.then_some(finalizer)).collect::<Vec<_>>()
    });
    owners_patch(resource, object, &json!(owners), held.as_deref())
}

/// Replaces the owner references, and the finalizers if they are given, of exactly this revision of
/// the object.
pub(crate) fn owners_patch<K: Object>(
    resource: Resource,
    object: &K,
    owners: &serde_json::Value,
    finalizers: Option<&[&str]>,
) -> Step {
    let metadata = object.meta();
    let mut changes = json!({
        "uid": metadata.uid(), "resourceVersion": metadata.resource_version(), "ownerReferences": owners,
    });
    if let (Some(finalizers), Some(changes)) = (finalizers, changes.as_object_mut()) {
        changes.insert("finalizers".to_owned(), json!(finalizers));
    }
    target(resource, object).merge(json!({ "metadata": changes }))
}
