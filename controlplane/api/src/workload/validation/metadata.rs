//! Validation of `metadata`, which all kinds share.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{ENOUGH, Shown, each, immutable, non_negative};
use crate::kind::Scope;
use crate::value::invalid::Invalid;
use crate::value::names::{self, Rule};

/// Maximum size of all annotations, keys and values, in bytes.
pub const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Validates a new object's metadata.
pub fn validate(metadata: &ObjectMeta, scope: Scope, rule: Rule) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if let Some(prefix) = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        each(&mut errors, "metadata.generateName", prefix, rule.check(prefix, true));
    }
    match metadata.name.as_deref() {
        None | Some("") => errors.push(Invalid::required("metadata.name", "name or generateName is required")),
        Some(name) => each(&mut errors, "metadata.name", name, rule.check(name, false)),
    }
    match (scope, metadata.namespace.as_deref().unwrap_or_default()) {
        (Scope::Namespaced, "") => errors.push(Invalid::required("metadata.namespace", "")),
        (Scope::Namespaced, namespace) => {
            each(
                &mut errors,
                "metadata.namespace",
                namespace,
                names::dns1123_label(namespace),
            );
        }
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => errors.push(Invalid::forbidden("metadata.namespace", "not allowed on this type")),
    }
    non_negative(&mut errors, "metadata.generation", metadata.generation.unwrap_or(0));
    errors.extend(labels(metadata.labels.as_ref(), "metadata.labels"));
    errors.extend(annotations(metadata.annotations.as_ref(), "metadata.annotations"));
    errors.extend(owners(metadata.owner_references.as_deref().unwrap_or_default()));
    errors.extend(finalizers(metadata.finalizers.as_deref().unwrap_or_default()));
    errors
}

/// Validates an update's metadata.
pub fn validate_update(new: &ObjectMeta, old: &ObjectMeta, scope: Scope, rule: Rule) -> Vec<Invalid> {
    let mut errors = Vec::new();
    immutable(&mut errors, "metadata.name", &new.name, &old.name);
    immutable(&mut errors, "metadata.namespace", &new.namespace, &old.namespace);
    immutable(&mut errors, "metadata.uid", &new.uid, &old.uid);
    immutable(
        &mut errors,
        "metadata.creationTimestamp",
        &new.creation_timestamp,
        &old.creation_timestamp,
    );
    immutable(
        &mut errors,
        "metadata.deletionTimestamp",
        &new.deletion_timestamp,
        &old.deletion_timestamp,
    );
    let grace = (&new.deletion_grace_period_seconds, &old.deletion_grace_period_seconds);
    immutable(&mut errors, "metadata.deletionGracePeriodSeconds", grace.0, grace.1);
    if old.deletion_timestamp.is_some() {
        let known: BTreeSet<&String> = old.finalizers.iter().flatten().collect();
        let added: Vec<&String> = new
            .finalizers
            .iter()
            .flatten()
            .filter(|name| !known.contains(name))
            .take(ENOUGH)
            .collect();
        if !added.is_empty() {
            let added: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            let text = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(Invalid::forbidden("metadata.finalizers", text));
        }
    }
    // An existing name stays valid even if the rule has become stricter.
    let mut rest = validate(new, scope, rule);
    rest.retain(|error| error.field != "metadata.name" && error.field != "metadata.generateName");
    errors.extend(rest);
    errors
}

/// Validates labels.
pub fn labels(labels: Option<&BTreeMap<String, String>>, field: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        if errors.len() >= ENOUGH {
            break;
        }
        each(&mut errors, field, key, names::qualified_name(key));
        each(&mut errors, field, value, names::label_value(value));
    }
    errors
}

/// Validates annotations.
pub fn annotations(annotations: Option<&BTreeMap<String, String>>, field: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        if errors.len() < ENOUGH {
            let lower = key.to_ascii_lowercase();
            each(&mut errors, field, key, names::qualified_name(&lower));
        }
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(Invalid::too_long(field, ANNOTATIONS_LIMIT));
    }
    errors
}

fn owners(references: &[OwnerReference]) -> Vec<Invalid> {
    const FIELD: &str = "metadata.ownerReferences";
    let mut errors = Vec::new();
    let mut controller: Option<&str> = None;
    let mut shown = Shown::new(references);
    for reference in references {
        if errors.len() >= ENOUGH {
            break;
        }
        let version = reference.api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            let detail = "version must not be empty";
            errors.push(Invalid::value(
                format!("{FIELD}.apiVersion"),
                &reference.api_version,
                detail,
            ));
        }
        for (name, value) in [
            ("kind", &reference.kind),
            ("name", &reference.name),
            ("uid", &reference.uid),
        ] {
            if value.is_empty() {
                errors.push(Invalid::value(format!("{FIELD}.{name}"), value, "must not be empty"));
            }
        }
        if reference.api_version == "v1" && reference.kind == "Event" {
            let value = serde_json::to_string(reference).unwrap_or_default();
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(Invalid::rendered(FIELD, value, detail));
        }
        if reference.controller == Some(true) {
            if let Some(first) = controller {
                let value = shown.next();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                    reference.name
                );
                errors.push(Invalid::rendered(FIELD, value, detail));
            } else {
                controller = Some(&reference.name);
            }
        }
    }
    errors
}

/// Message for an unqualified finalizer, only of kinds in upstream's core (`ValidateFinalizerName`
/// of `pkg/apis/core/validation/validation.go`).
pub(crate) const UNQUALIFIED: &str = "name is neither a standard finalizer name nor is it fully qualified";

/// Validates the names of finalizers at a path.
pub(crate) fn finalizer_names(names: &[String], path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    for name in names {
        if errors.len() >= ENOUGH {
            break;
        }
        each(&mut errors, path, name, names::qualified_name(name));
        if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name.as_str()) {
            errors.push(Invalid::value(path, name, UNQUALIFIED));
        }
    }
    errors
}

fn finalizers(names: &[String]) -> Vec<Invalid> {
    const FIELD: &str = "metadata.finalizers";
    let mut errors = finalizer_names(names, FIELD);
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("orphan") && has("foregroundDeletion") {
        let value = serde_json::to_string(names).unwrap_or_default();
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(Invalid::rendered(FIELD, value, detail));
    }
    errors
}
