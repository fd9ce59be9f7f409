//! Persistent volumes: which claim gets which, what becomes of a volume after its claim, and what is made for whom.
//!
//! Both sides of a bond are written one after the other, the volume first, each under the revision that was read. So two
//! claims never get one volume, and a bond that was begun is completed by whoever sees it next.

pub mod claims;
pub mod ephemeral;
mod matching;
pub mod provision;
#[cfg(test)]
mod tests;
pub mod volumes;

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{api::resource, apis::meta::v1::ObjectMeta},
};
use std::collections::BTreeMap;

use api::quantity::Quantity;

pub use self::matching::{Wanted, best};
use crate::objects::{annotation, name, uid};

/// The bond of a claim or volume was made by the controller, not asked for by its author.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The claim has been bound completely at least once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Who made the volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Who is to make a volume for the claim.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The same under the name that older provisioners read.
pub const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The node that the scheduler chose for the claim's first pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// How claims and volumes named their class before there was a field for it.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes whose volumes nobody makes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The class of a claim; empty for none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let field = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    class(&claim.metadata, field)
}

/// The class of a volume; empty for none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let field = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    class(&volume.metadata, field)
}

fn class<'a>(metadata: &'a ObjectMeta, field: Option<&'a str>) -> &'a str {
    annotation(metadata, OLD_CLASS).or(field).unwrap_or_default()
}

/// The volume that a claim names.
pub fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Whether the claim is bound, both sides and for good.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_of(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// Whether the class's volumes wait for a pod.
pub fn waits(class: Option<&StorageClass>) -> bool {
    class.and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
}

/// The claim that a volume names: namespace and name.
pub fn claim_of(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((
        claim.namespace.as_deref().unwrap_or_default(),
        claim.name.as_deref().unwrap_or_default(),
    ))
}

/// Whether a volume names this claim: by name, and by uid where it names one.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return false;
    };
    let own = reference.uid.as_deref().unwrap_or_default();
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (own.is_empty() || own == uid(claim))
}

/// The node affinity of a volume, if nodes must meet one.
pub fn affinity(volume: &PersistentVolume) -> Option<&NodeSelector> {
    volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()
}

/// `Filesystem` or `Block`.
fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

fn modes_agree(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    let claim = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    mode(volume) == mode(claim)
}

/// Whether a volume can be mounted in all the ways that the claim asks for.
fn allows(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let allowed = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    let allowed = allowed.unwrap_or_default();
    wanted.unwrap_or_default().iter().all(|mode| allowed.contains(mode))
}

fn storage(amounts: Option<&BTreeMap<String, resource::Quantity>>) -> Quantity {
    amounts
        .and_then(|amounts| amounts.get("storage"))
        .map_or(Quantity::ZERO, Quantity::of)
}

/// How much a volume holds.
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

/// How much a claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    storage(resources.and_then(|resources| resources.requests.as_ref()))
}

/// The volume's phase, `Pending` where it has none.
pub fn phase(volume: &PersistentVolume) -> &str {
    let status = volume.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// The claim's phase, `Pending` where it has none.
pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// What becomes of the volume after its claim.
pub fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}

/// `default/data`
fn full_name(claim: &PersistentVolumeClaim) -> String {
    format!(
        "{}/{}",
        claim.metadata.namespace.as_deref().unwrap_or_default(),
        name(claim)
    )
}
