//! `StorageObjectInUseProtection`: adds the finalizers that keep claims, volumes and classes of
//! attributes until they are unused; the protection controllers remove them.

use api::Object;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use super::Review;
use crate::request::failure::Failure;

/// Puts the finalizer on new objects.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn protect(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let finalizer = if object.as_any().downcast_ref::<PersistentVolumeClaim>().is_some() {
        "kubernetes.io/pvc-protection"
    } else if object.as_any().downcast_ref::<PersistentVolume>().is_some() {
        "kubernetes.io/pv-protection"
    } else if object.as_any().downcast_ref::<VolumeAttributesClass>().is_some() {
        "kubernetes.io/vac-protection"
    } else {
        return Ok(());
    };
    let finalizers = object.metadata_mut().finalizers.get_or_insert_default();
    if !finalizers.iter().any(|own| own == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
    Ok(())
}
