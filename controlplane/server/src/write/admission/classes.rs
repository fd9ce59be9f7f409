//! Classes: default `StorageClass` and `IngressClass`, expansion of claims and phases of volumes,
//! and overhead and scheduling of a `RuntimeClass`.

use std::collections::BTreeMap;

use api::Object;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PodSpec};
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::DeserializeOwned;
use store::{Key, Prefix};

use super::{Review, pod_spec};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::admission::Part;

const STORAGE_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const INGRESS_DEFAULT: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];
/// Annotation for the class of a claim, from before the field existed.
const OLD_STORAGE: &str = "volume.beta.kubernetes.io/storage-class";
const OLD_INGRESS: &str = "kubernetes.io/ingress.class";

fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The name of the newest class that is annotated as the default one.
fn default_class<K: DeserializeOwned + k8s_openapi::Metadata<Ty = ObjectMeta>>(
    context: &Context,
    prefix: &Prefix,
    annotations: &[&str],
) -> Option<String> {
    let entries = context.store().present(prefix);
    let classes = entries
        .iter()
        .filter_map(|entry| serde_json::from_slice::<K>(&entry.bytes).ok());
    let mut defaults: Vec<ObjectMeta> = classes
        .map(|class| class.metadata().clone())
        .filter(|metadata| {
            annotations
                .iter()
                .any(|name| annotation(metadata, name) == Some("true"))
        })
        .collect();
    defaults.sort_by(|a, b| {
        b.creation_timestamp
            .cmp(&a.creation_timestamp)
            .then(a.name.cmp(&b.name))
    });
    defaults.into_iter().next()?.name
}

/// Sets the time of a volume's phase where a new status leaves it as it was (`PrepareForUpdate` of
/// `pkg/registry/core/persistentvolume/strategy.go`).
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn date_phase(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let new = object.as_any_mut().downcast_mut::<PersistentVolume>();
    let old = review
        .old
        .and_then(|old| old.as_any().downcast_ref::<PersistentVolume>());
    let (Part::Status, Some(new), Some(old)) = (review.part, new, old) else {
        return Ok(());
    };
    let before = old.status.clone().unwrap_or_default();
    let (status, since) = (new.status.get_or_insert_default(), before.last_phase_transition_time);
    let is_told = status.last_phase_transition_time.is_some();
    if status.phase == before.phase {
        status.last_phase_transition_time = status.last_phase_transition_time.take().or(since);
    } else if !is_told || status.last_phase_transition_time == since {
        status.last_phase_transition_time = Some(Time(review.context.now()));
    }
    Ok(())
}

/// `DefaultStorageClass`
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn of_claim(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(claim) = object.as_any_mut().downcast_mut::<PersistentVolumeClaim>() else {
        return Ok(());
    };
    let old = annotation(&claim.metadata, OLD_STORAGE).is_some();
    let Some(spec) = claim
        .spec
        .as_mut()
        .filter(|spec| !old && spec.storage_class_name.is_none())
    else {
        return Ok(());
    };
    let prefix = Prefix::resource("storage.k8s.io", "storageclasses");
    spec.storage_class_name = default_class::<StorageClass>(review.context, &prefix, &STORAGE_DEFAULT);
    Ok(())
}

/// `DefaultIngressClass`
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn of_ingress(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(ingress) = object.as_any_mut().downcast_mut::<Ingress>() else {
        return Ok(());
    };
    let old = annotation(&ingress.metadata, OLD_INGRESS).is_some();
    let Some(spec) = ingress
        .spec
        .as_mut()
        .filter(|spec| !old && spec.ingress_class_name.is_none())
    else {
        return Ok(());
    };
    let prefix = Prefix::resource("networking.k8s.io", "ingressclasses");
    spec.ingress_class_name = default_class::<IngressClass>(review.context, &prefix, &INGRESS_DEFAULT);
    Ok(())
}

/// `PersistentVolumeClaimResize`: a bound claim can grow if its class allows expansion.
pub(super) fn may_grow(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    let new = object.as_any().downcast_ref::<PersistentVolumeClaim>();
    let old = review
        .old
        .and_then(|old| old.as_any().downcast_ref::<PersistentVolumeClaim>());
    let (Some(new), Some(old)) = (new, old) else {
        return Ok(());
    };
    if review.part != Part::Object || size(new) <= size(old) {
        return Ok(());
    }
    let phase = old.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(review.forbid(object, "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(new).filter(|class| class_of(old) == Some(class) && !class.is_empty());
    let class = class.and_then(|name| named::<StorageClass>(review.context, "storage.k8s.io", "storageclasses", name));
    if class.is_some_and(|class| class.allow_volume_expansion == Some(true)) {
        return Ok(());
    }
    let because = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
    Err(review.forbid(object, because))
}

fn size(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests
        .and_then(|requests| requests.get("storage"))
        .map_or(Quantity::ZERO, Quantity::of)
}

fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, OLD_STORAGE).or(claim.spec.as_ref()?.storage_class_name.as_deref())
}

fn named<K: DeserializeOwned>(context: &Context, group: &str, plural: &str, name: &str) -> Option<K> {
    let key = Key::new(group, plural, "", name).ok()?;
    serde_json::from_slice(&context.store().get(&key)?.bytes).ok()
}

/// `RuntimeClass`: sets overhead and scheduling constraints of a runtime.
pub(super) fn of_runtime(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(spec) = pod_spec(object) else {
        return Ok(());
    };
    complete(review.context, spec).map_err(|because| review.forbid(object, because))
}

/// Sets the fields that the pod's class defines; the error text says why it cannot.
fn complete(context: &Context, spec: &mut PodSpec) -> Result<(), String> {
    let Some(name) = spec.runtime_class_name.as_deref() else {
        return match &spec.overhead {
            Some(overhead) if !overhead.is_empty() => {
                Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".to_owned())
            }
            Some(_) | None => Ok(()),
        };
    };
    let Some(class) = named::<RuntimeClass>(context, "node.k8s.io", "runtimeclasses", name) else {
        return Err(format!("pod rejected: RuntimeClass {name:?} not found"));
    };
    let overhead = class
        .overhead
        .and_then(|overhead| overhead.pod_fixed)
        .unwrap_or_default();
    let own = spec.overhead.clone().unwrap_or_default();
    let read = |amounts: &BTreeMap<String, _>| -> BTreeMap<String, Quantity> {
        amounts
            .iter()
            .map(|(name, amount)| (name.clone(), Quantity::of(amount)))
            .collect()
    };
    if !own.is_empty() && read(&own) != read(&overhead) {
        return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned());
    }
    if !overhead.is_empty() {
        spec.overhead = Some(overhead);
    }
    let Some(scheduling) = class.scheduling else {
        return Ok(());
    };
    for (label, value) in scheduling.node_selector.into_iter().flatten() {
        let own = spec.node_selector.get_or_insert_default();
        match own.get(&label).filter(|own| **own != value) {
            Some(own) => {
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{label}] = {value}; pod.spec.nodeSelector[{label}] = {own}"
                ));
            }
            None => drop(own.insert(label, value)),
        }
    }
    for toleration in scheduling.tolerations.into_iter().flatten() {
        let own = spec.tolerations.get_or_insert_default();
        if !own.contains(&toleration) {
            own.push(toleration);
        }
    }
    Ok(())
}
