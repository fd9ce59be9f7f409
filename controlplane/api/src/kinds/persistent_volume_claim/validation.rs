//! Validation of claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{ANNOTATION, annotated, volume};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity as Amount;
use crate::workload::validation::resources::is_native;
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::{IMMUTABLE, difference, each, immutable, one_of_or_none, required};

const FIXED: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

/// States of the expansion of a resource.
const EXPANSION: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn requested(spec: &PersistentVolumeClaimSpec) -> Option<Amount> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(Amount::of)
}

type Specified<'a> = (&'a PersistentVolumeClaim, &'a PersistentVolumeClaimSpec);

/// Validates the changes of a claim's spec. Volume and class may be set once; the requested storage
/// and the attributes class may change.
pub(super) fn may_differ(errors: &mut Vec<Invalid>, (new, spec): Specified<'_>, (old, before): Specified<'_>) {
    let mut fixed = spec.clone();
    if volume(old).is_none() {
        fixed.volume_name.clone_from(&before.volume_name);
    }
    class_may_differ(errors, &mut fixed, (new, spec), (old, before));
    let bound = old.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if bound {
        let asked = before.resources.as_ref().and_then(|own| own.requests.as_ref());
        let asked = asked.and_then(|requests| requests.get("storage"));
        let requests = fixed.resources.as_mut().and_then(|own| own.requests.as_mut());
        if let (Some(requests), Some(asked)) = (requests, asked) {
            requests.insert("storage".to_owned(), asked.clone());
        }
        fixed
            .volume_attributes_class_name
            .clone_from(&before.volume_attributes_class_name);
    }
    if fixed != *before {
        let detail = format!("{FIXED}\n{}", difference(&fixed, before));
        errors.push(Invalid::forbidden("spec", detail));
    }
    let status = old.status.as_ref().and_then(|status| status.capacity.as_ref());
    let has = status
        .and_then(|capacity| capacity.get("storage"))
        .map_or(Amount::ZERO, Amount::of);
    if requested(spec) < requested(before) && requested(spec).is_none_or(|wanted| wanted <= has) {
        let detail = "field can not be less than status.capacity";
        errors.push(Invalid::forbidden("spec.resources.requests.storage", detail));
    }
    immutable(errors, "volumeMode", &spec.volume_mode, &before.volume_mode);
    let gone = match spec.volume_attributes_class_name.as_deref() {
        None => "nil",
        Some("") => "empty string",
        Some(_) => return,
    };
    let status = old.status.as_ref();
    let is_applied = status.is_some_and(|status| status.current_volume_attributes_class_name.is_some());
    if is_applied && spec.volume_attributes_class_name != before.volume_attributes_class_name {
        let detail = format!("update to {gone} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(Invalid::forbidden("spec.volumeAttributesClassName", detail));
    }
}

/// True if a claim without a class may get one: the one of its annotation, if it has that.
fn class_may_differ(
    errors: &mut Vec<Invalid>,
    fixed: &mut PersistentVolumeClaimSpec,
    (new, spec): Specified<'_>,
    (old, before): Specified<'_>,
) {
    let (now, then) = (annotated(&new.metadata), annotated(&old.metadata));
    let class = spec.storage_class_name.as_deref();
    let added = before.storage_class_name.is_none() && class.is_some();
    let same = then.is_none_or(|then| class == Some(then));
    if added && same {
        fixed.storage_class_name = None;
    }
    if added && same && then.is_some() && now.is_none() {
        return;
    }
    if now != then {
        let field = format!("metadata.annotations.{ANNOTATION}");
        errors.push(Invalid::value(field, now.unwrap_or_default(), IMMUTABLE));
    }
}

/// Validates a status, also of an expansion (`ValidatePersistentVolumeClaimStatusUpdate` of
/// `pkg/apis/core/validation/validation.go`).
pub(super) fn status(status: &PersistentVolumeClaimStatus) -> Vec<Invalid> {
    let mut errors = Vec::new();
    amounts(
        &mut errors,
        status.capacity.as_ref(),
        "status.capacity",
        |_errors, _name| true,
    );
    let path = "status.allocatedResourceStatuses";
    for (name, state) in status.allocated_resource_statuses.iter().flatten() {
        resource(&mut errors, name, path);
        if !EXPANSION.contains(&state.as_str()) {
            // Upstream shows the resource.
            errors.push(Invalid::not_supported(path, name, &EXPANSION));
        }
    }
    let path = "status.allocatedResources";
    amounts(
        &mut errors,
        status.allocated_resources.as_ref(),
        path,
        |errors, name| resource(errors, name, path),
    );
    errors
}

/// Validates amounts, except for those whose names `is_known` refuses.
fn amounts(
    errors: &mut Vec<Invalid>,
    amounts: Option<&BTreeMap<String, Quantity>>,
    path: &str,
    is_known: impl Fn(&mut Vec<Invalid>, &str) -> bool,
) {
    for (name, text) in amounts.into_iter().flatten() {
        let amount = Amount::of(text);
        if is_known(errors, name) && amount.is_negative() {
            let detail = "must be a valid resource quantity";
            errors.push(Invalid::value(format!("{path}[{name}]"), amount.value(), detail));
        }
    }
}

/// Validates the name of a resource that a claim can have allocated.
fn resource(errors: &mut Vec<Invalid>, name: &str, path: &str) -> bool {
    let before = errors.len();
    each(errors, path, name, names::qualified_name(name));
    if errors.len() == before && is_native(name) && name != "storage" {
        errors.push(Invalid::not_supported(path, name, &["storage"]));
    }
    errors.len() == before
}

/// Validates a claim's spec at any path.
pub(crate) fn validate_spec(spec: &PersistentVolumeClaimSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let modes = spec.access_modes.as_deref();
    let (at_least, mut of_modes) = ("at least 1 access mode is required", Vec::new());
    modes_of(&mut of_modes, modes, path, at_least);
    // Errors of the selector come between the error for missing access modes and the errors in the
    // modes.
    let missing = usize::from(modes.unwrap_or_default().is_empty());
    errors.extend(of_modes.drain(..missing.min(of_modes.len())));
    if let Some(selector) = &spec.selector {
        label_selector(&mut errors, selector, &format!("{path}.selector"));
    }
    errors.extend(of_modes);
    let field = format!("{path}.resources[storage]");
    match requested(spec) {
        None => errors.push(Invalid::required(field, "")),
        Some(amount) if amount <= Amount::ZERO => {
            let text = amount.to_string();
            errors.push(Invalid::value(field, text, "must be greater than zero"));
        }
        Some(_) => {}
    }
    let class = |errors: &mut Vec<Invalid>, name: &str, class: Option<&str>| {
        if let Some(class) = class.filter(|class| !class.is_empty()) {
            each(
                errors,
                &format!("{path}.{name}"),
                class,
                names::dns1123_subdomain(class),
            );
        }
    };
    class(&mut errors, "storageClassName", spec.storage_class_name.as_deref());
    let mode = spec.volume_mode.as_deref();
    let field = format!("{path}.volumeMode");
    one_of_or_none(&mut errors, &field, mode, &["Block", "Filesystem"]);
    sources(&mut errors, spec, path);
    class(
        &mut errors,
        "volumeAttributesClassName",
        spec.volume_attributes_class_name.as_deref(),
    );
    errors
}

/// Validates the data sources of the volume.
fn sources(errors: &mut Vec<Invalid>, spec: &PersistentVolumeClaimSpec, path: &str) {
    let (own, other) = (&spec.data_source, &spec.data_source_ref);
    if let Some(own) = own {
        let field = format!("{path}.dataSource");
        source(errors, own.api_group.as_deref(), &own.kind, &own.name, &field);
    }
    let Some(other) = other else { return };
    let field = format!("{path}.dataSourceRef");
    source(errors, other.api_group.as_deref(), &other.kind, &other.name, &field);
    let namespace = other.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    if let Some(namespace) = namespace {
        let field = format!("{field}.namespace");
        each(errors, &field, namespace, names::dns1123_label(namespace));
    }
    let Some(own) = own else { return };
    let same = (&own.api_group, &own.kind, &own.name) == (&other.api_group, &other.kind, &other.name);
    let detail = match namespace {
        Some(_) => "may not be specified when dataSourceRef.namespace is specified",
        None if !same => "must match dataSourceRef",
        None => return,
    };
    // Upstream shows its structure of a path, whose fields are private.
    errors.push(Invalid::rendered(path, "{}".to_owned(), detail));
}

fn source(errors: &mut Vec<Invalid>, group: Option<&str>, kind: &str, name: &str, path: &str) {
    required(errors, &format!("{path}.name"), Some(name));
    required(errors, &format!("{path}.kind"), Some(kind));
    match group.filter(|group| !group.is_empty()) {
        None if kind != "PersistentVolumeClaim" => {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Invalid::value(path, kind, detail));
        }
        None => {}
        Some(group) => each(
            errors,
            &format!("{path}.apiGroup"),
            group,
            names::dns1123_subdomain(group),
        ),
    }
}

/// Validates access modes.
pub(in crate::kinds) fn modes_of(errors: &mut Vec<Invalid>, modes: Option<&[String]>, path: &str, missing: &str) {
    let modes = modes.unwrap_or_default();
    let field = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(Invalid::required(field.as_str(), missing));
    }
    for mode in modes.iter().filter(|mode| !MODES.contains(&mode.as_str())) {
        errors.push(Invalid::not_supported(field.as_str(), mode, &MODES));
    }
    let known = |mode: &&String| MODES.contains(&mode.as_str());
    let (alone, others): (Vec<&String>, _) = modes
        .iter()
        .filter(known)
        .partition(|mode| mode.as_str() == "ReadWriteOncePod");
    if !alone.is_empty() && !others.is_empty() {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(Invalid::forbidden(field, detail));
    }
}
