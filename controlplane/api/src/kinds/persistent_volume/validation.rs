//! Validation of volumes.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolumeSpec, SecretReference};
use serde_json::Value;

use super::drivers;
use crate::kinds::persistent_volume_claim::modes_of;
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::validation::storage::csi_driver;
use crate::workload::validation::{
    IMMUTABLE, difference, each, immutable, internal, nfs_path, non_empty, one_of_or_none, required,
    volume_node_affinity, volume_path,
};

/// Fields of the spec that are not volume sources.
const OTHERS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// Validates a new volume.
pub(super) fn validate(spec: &PersistentVolumeSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    modes_of(&mut errors, spec.access_modes.as_deref(), "spec", "");
    capacity(&mut errors, spec);
    let policies = ["Delete", "Recycle", "Retain"];
    let policy = non_empty(spec.persistent_volume_reclaim_policy.as_deref());
    one_of_or_none(&mut errors, "spec.persistentVolumeReclaimPolicy", policy, &policies);
    if let Some(affinity) = &spec.node_affinity {
        volume_node_affinity(&mut errors, affinity, "spec.nodeAffinity");
    }
    sources(&mut errors, spec);
    if policy == Some("Recycle") && spec.host_path.as_ref().is_some_and(|host| is_root(&host.path)) {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(Invalid::forbidden("spec.persistentVolumeReclaimPolicy", detail));
    }
    if let Some(class) = non_empty(spec.storage_class_name.as_deref()) {
        each(
            &mut errors,
            "spec.storageClassName",
            class,
            names::dns1123_subdomain(class),
        );
    }
    let mode = spec.volume_mode.as_deref();
    one_of_or_none(&mut errors, "spec.volumeMode", mode, &["Block", "Filesystem"]);
    if let Some(class) = spec.volume_attributes_class_name.as_deref() {
        const FIELD: &str = "spec.volumeAttributesClassName";
        match class {
            "" => errors.push(Invalid::required(FIELD, "an empty string is disallowed")),
            class => each(&mut errors, FIELD, class, names::dns1123_subdomain(class)),
        }
        if spec.csi.is_none() {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.push(Invalid::required("spec.csi", detail));
        }
    }
    errors
}

/// Validates an update, besides the rules for a new volume.
pub(super) fn validate_update(new: &PersistentVolumeSpec, old: &PersistentVolumeSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let (is, was) = (place(new, old), place(old, old));
    if is != was {
        let detail = "spec.persistentvolumesource is immutable after creation";
        let detail = format!("{detail}\n{}", difference(&is, &was));
        errors.push(Invalid::forbidden("spec.persistentvolumesource", detail));
    }
    immutable(&mut errors, "volumeMode", &new.volume_mode, &old.volume_mode);
    if old.node_affinity.is_some() && new.node_affinity != old.node_affinity {
        let value = internal::volume_node_affinity(new.node_affinity.as_ref());
        let detail = format!("{IMMUTABLE}, except for updating from beta label to GA");
        errors.push(Invalid::rendered("nodeAffinity", value, detail));
    }
    if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
        let detail = "update from non-nil value to nil is forbidden";
        errors.push(Invalid::forbidden("spec.volumeAttributesClassName", detail));
    }
    errors
}

fn capacity(errors: &mut Vec<Invalid>, spec: &PersistentVolumeSpec) {
    const FIELD: &str = "spec.capacity";
    let amounts = spec.capacity.clone().unwrap_or_default();
    if amounts.is_empty() {
        errors.push(Invalid::required(FIELD, ""));
    }
    if !amounts.contains_key("storage") || amounts.len() > 1 {
        let mut error = Invalid::not_supported(FIELD, "", &["storage"]);
        error.value = serde_json::to_string(&spec.capacity).ok();
        errors.push(error);
    }
    for (name, text) in &amounts {
        let (field, amount) = (format!("{FIELD}[{name}]"), Quantity::of(text));
        if amount.is_negative() {
            let detail = "must be a valid resource quantity";
            errors.push(Invalid::value(field.as_str(), amount.value(), detail));
        }
        if amount <= Quantity::ZERO {
            errors.push(Invalid::value(field, &text.0, "must be greater than zero"));
        }
    }
}

/// Validates that there is exactly one source, and its fields.
fn sources(errors: &mut Vec<Invalid>, spec: &PersistentVolumeSpec) {
    let Ok(Value::Object(members)) = serde_json::to_value(spec) else {
        return;
    };
    let mut places = members.keys().filter(|name| !OTHERS.contains(&name.as_str()));
    if places.next().is_none() {
        errors.push(Invalid::required("spec", "must specify a volume type"));
    }
    for name in places {
        let detail = "may not specify more than 1 volume type";
        errors.push(Invalid::forbidden(format!("spec.{name}"), detail));
    }
    if let Some(host) = &spec.host_path {
        volume_path(errors, host, "spec.hostPath");
    }
    if let Some(local) = &spec.local {
        required(errors, "spec.local.path", Some(&local.path));
        let found = spec
            .node_affinity
            .as_ref()
            .is_some_and(|affinity| affinity.required.is_some());
        if !found {
            let detail = "Local volume requires node affinity";
            errors.push(Invalid::required("spec.nodeAffinity", detail));
        }
    }
    if let Some(nfs) = &spec.nfs {
        nfs_path(errors, nfs, "spec.nfs");
    }
    drivers::validate(errors, spec);
    if let Some(csi) = &spec.csi {
        self::csi(errors, csi);
    }
}

fn csi(errors: &mut Vec<Invalid>, csi: &CSIPersistentVolumeSource) {
    csi_driver(errors, "spec.csi.driver", &csi.driver);
    required(errors, "spec.csi.volumeHandle", Some(&csi.volume_handle));
    for (name, secret) in [
        ("controllerPublishSecretRef", &csi.controller_publish_secret_ref),
        ("controllerExpandSecretRef", &csi.controller_expand_secret_ref),
        ("nodePublishSecretRef", &csi.node_publish_secret_ref),
        ("nodeExpandSecretRef", &csi.node_expand_secret_ref),
    ] {
        if let Some(secret) = secret {
            self::secret(errors, secret, &format!("spec.csi.{name}"));
        }
    }
}

fn secret(errors: &mut Vec<Invalid>, secret: &SecretReference, path: &str) {
    let (name, namespace) = (format!("{path}.name"), format!("{path}.namespace"));
    if required(errors, &name, secret.name.as_deref()) {
        let own = secret.name.as_deref().unwrap_or_default();
        each(errors, &name, own, names::dns1123_subdomain(own));
    }
    if required(errors, &namespace, secret.namespace.as_deref()) {
        let own = secret.namespace.as_deref().unwrap_or_default();
        each(errors, &namespace, own, names::dns1123_label(own));
    }
}

/// True if a path resolves to `/`.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}

/// Volume source: the spec without all other fields. The secret for expansion may be added once.
fn place(spec: &PersistentVolumeSpec, old: &PersistentVolumeSpec) -> PersistentVolumeSpec {
    let mut place = PersistentVolumeSpec {
        access_modes: None,
        capacity: None,
        claim_ref: None,
        mount_options: None,
        node_affinity: None,
        persistent_volume_reclaim_policy: None,
        storage_class_name: None,
        volume_attributes_class_name: None,
        volume_mode: None,
        ..spec.clone()
    };
    let may = old
        .csi
        .as_ref()
        .is_some_and(|csi| csi.controller_expand_secret_ref.is_none());
    if let Some(csi) = place.csi.as_mut().filter(|_| may) {
        csi.controller_expand_secret_ref = None;
    }
    place
}
