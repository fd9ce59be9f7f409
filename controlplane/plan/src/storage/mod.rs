//! Persistent volumes: binding to claims, reclaiming, provisioning, and attaching to nodes.
//!
//! Binding writes both sides one after the other, the volume first, each with the resource version
//! that was read. So two claims never get one volume, and a binding that was interrupted is
//! completed by the next sync.

pub mod attach;
pub mod claims;
pub mod ephemeral;
mod matching;
pub mod provision;
#[cfg(test)]
mod tests;
pub mod volumes;

use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::quantity::Quantity;

pub use self::matching::{Wanted, best};
use crate::objects::{annotation, name, uid};

/// Set if the controller made the binding, not the author of the claim or volume.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Set once the claim has been bound completely.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Provisioner that created the volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Provisioner that is to create a volume for the claim.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Older name of that annotation.
pub const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Node that the scheduler chose for the claim's first pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Storage class of claims and volumes before there was a field for it.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotations of the default class.
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// Provisioner of classes without dynamic provisioning.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The class of a claim; empty for none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let field = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    class(&claim.metadata, field)
}

/// True if a claim names a class, even an empty one.
fn has_class(claim: &PersistentVolumeClaim) -> bool {
    let field = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    field.is_some() || annotation(&claim.metadata, OLD_CLASS).is_some()
}

/// True if a class is annotated as the default one.
pub fn is_default(class: &StorageClass) -> bool {
    DEFAULT_CLASS
        .iter()
        .any(|key| annotation(&class.metadata, key) == Some("true"))
}

/// Name of the default class: the newest of them (`pkg/volume/util/storageclass.go`).
pub fn default_class(classes: &[Arc<StorageClass>]) -> Option<&str> {
    let mut defaults: Vec<&ObjectMeta> = classes
        .iter()
        .filter(|class| is_default(class))
        .map(|class| &class.metadata)
        .collect();
    defaults.sort_by(|a, b| {
        b.creation_timestamp
            .cmp(&a.creation_timestamp)
            .then(a.name.cmp(&b.name))
    });
    defaults.first()?.name.as_deref()
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

/// True if the claim is bound completely, on both sides.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_of(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// True if the class's binding mode is `WaitForFirstConsumer`.
pub fn waits(class: Option<&StorageClass>) -> bool {
    class.and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
}

/// Namespace and name of the claim that a volume refers to.
pub fn claim_of(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((
        claim.namespace.as_deref().unwrap_or_default(),
        claim.name.as_deref().unwrap_or_default(),
    ))
}

/// True if a volume refers to this claim: by name, and by uid if the reference has one.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return false;
    };
    let own = reference.uid.as_deref().unwrap_or_default();
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (own.is_empty() || own == uid(claim))
}

/// `DRIVER^HANDLE` of a volume, if a CSI driver has it (`GetVolumeName`,
/// `pkg/volume/csi/csi_plugin.go`).
pub fn csi_name(volume: &PersistentVolume) -> Option<String> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(format!("{}^{}", source.driver, source.volume_handle))
}

/// Required node affinity of a volume.
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

/// True if the volume has the class of attributes that the claim asks for, or neither has one.
fn attributes_agree(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.spec.as_ref();
    let volume = volume.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let claim = claim.spec.as_ref();
    let claim = claim.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    volume.unwrap_or_default() == claim.unwrap_or_default()
}

/// True if the volume supports all of the claim's access modes.
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

/// Capacity of a volume.
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

/// Storage request of a claim.
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

/// Reclaim policy of a volume.
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
