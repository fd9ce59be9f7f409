//! Validation of `CustomResourceDefinition`s except for their schemas
//! (`pkg/apis/apiextensions/validation/validation.go`). As in upstream's internal type, parts that
//! all versions have in common are outside the versions, and errors have their path there.

mod conversion;

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionVersion, CustomResourceSubresources,
};
use serde_json::json;

use super::APPROVED;
use super::names::{Approval, approval_of, has_bad_bundle, is_protected, is_true};
use crate::value::invalid::Invalid;
use crate::value::names::{dns1035_label, dns1123_subdomain};
use crate::workload::validation::{immutable, one_of};

const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

/// Adds one error that joins all messages about a value.
fn joined(errors: &mut Vec<Invalid>, field: String, value: &str, prefix: &str, messages: &[String]) {
    if !messages.is_empty() {
        errors.push(Invalid::value(field, value, format!("{prefix}{}", messages.join(","))));
    }
}

/// Validates that the name is `PLURAL.GROUP`.
pub(super) fn name(definition: &CustomResourceDefinition) -> Vec<Invalid> {
    let spec = &definition.spec;
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() || name == format!("{}.{}", spec.names.plural, spec.group) {
        return Vec::new();
    }
    let detail = "must be spec.names.plural+\".\"+spec.group";
    vec![Invalid::value("metadata.name", name, detail)]
}

pub(super) fn spec(definition: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Vec<Invalid> {
    let spec = &definition.spec;
    let mut errors = Vec::new();
    if spec.group.is_empty() {
        errors.push(Invalid::required("spec.group", ""));
    } else {
        let wrong = dns1123_subdomain(&spec.group);
        if wrong.is_empty() && !spec.group.contains('.') {
            let detail = "should be a domain with at least one dot";
            errors.push(Invalid::value("spec.group", &spec.group, detail));
        }
        joined(&mut errors, "spec.group".to_owned(), &spec.group, "", &wrong);
    }
    one_of(&mut errors, "spec.scope", Some(&spec.scope), &["Cluster", "Namespaced"]);
    versions(&mut errors, &spec.versions);
    let required = [
        ("plural", &spec.names.plural),
        ("singular", spec.names.singular.as_ref().unwrap_or(&String::new())),
        ("kind", &spec.names.kind),
        ("listKind", spec.names.list_kind.as_ref().unwrap_or(&String::new())),
    ]
    .map(|(name, value)| (name, value.is_empty()));
    let missing = required.into_iter().filter(|(_, is_missing)| *is_missing);
    errors.extend(missing.map(|(name, _)| Invalid::required(format!("spec.names.{name}"), "")));
    names_at(&mut errors, "spec.names", &spec.names);
    let keeps_bundle = |old: &CustomResourceDefinition| {
        let is_established = old.status.as_ref().is_some_and(|status| is_true(status, "Established"));
        is_established && !old.spec.conversion.as_ref().is_some_and(has_bad_bundle)
    };
    if let Some(own) = &spec.conversion {
        conversion::check(&mut errors, own, old.is_some_and(keeps_bundle));
    }
    errors
}

/// True if a part is the same in all versions.
fn is_common<T: PartialEq>(
    versions: &[CustomResourceDefinitionVersion],
    part: impl Fn(&CustomResourceDefinitionVersion) -> &T,
) -> bool {
    versions.windows(2).all(|pair| match pair {
        [one, other] => part(one) == part(other),
        _ => true,
    })
}

/// Path of a part: outside the versions if all have it in common. Of a common part only the first
/// version is validated.
fn part_of<T: PartialEq>(
    versions: &[CustomResourceDefinitionVersion],
    part: impl Fn(&CustomResourceDefinitionVersion) -> &T,
) -> impl Fn(usize) -> Option<String> {
    let common = is_common(versions, part);
    move |index| match (common, index) {
        (false, index) => Some(format!("spec.versions[{index}]")),
        (true, 0) => Some("spec".to_owned()),
        (true, _) => None,
    }
}

/// Path in errors about the schema of a version; none if that of another version stands for it.
pub fn schema_path(versions: &[CustomResourceDefinitionVersion], index: usize) -> Option<String> {
    let place = part_of(versions, |version| &version.schema)(index)?;
    let name = if place == "spec" { "validation" } else { "schema" };
    Some(format!("{place}.{name}.openAPIV3Schema"))
}

/// Path in errors about the selectable fields of a version.
pub fn selectable_path(versions: &[CustomResourceDefinitionVersion], index: usize) -> Option<String> {
    let place = part_of(versions, |version| &version.selectable_fields)(index)?;
    Some(format!("{place}.selectableFields"))
}

fn versions(errors: &mut Vec<Invalid>, versions: &[CustomResourceDefinitionVersion]) {
    for (index, version) in versions.iter().enumerate() {
        let schema = version.schema.as_ref().and_then(|own| own.open_api_v3_schema.as_ref());
        if schema.is_none() {
            errors.push(Invalid::required(
                format!("spec.versions[{index}].schema.openAPIV3Schema"),
                "",
            ));
        }
    }
    let columns = part_of(versions, |version| &version.additional_printer_columns);
    let subresources = part_of(versions, |version| &version.subresources);
    let (mut seen, mut is_unique, mut stored) = (BTreeSet::new(), true, 0);
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        stored += usize::from(version.storage);
        is_unique &= seen.insert(&version.name);
        let wrong = dns1035_label(&version.name);
        joined(errors, format!("{path}.name"), &version.name, "", &wrong);
        deprecation(errors, &path, version);
        if let (Some(place), Some(own)) = (subresources(index), &version.subresources) {
            scale(errors, &format!("{place}.subresources"), own);
        }
        let own = version.additional_printer_columns.iter().flatten().enumerate();
        if let Some(place) = columns(index) {
            own.for_each(|(index, own)| column(errors, &format!("{place}.additionalPrinterColumns[{index}]"), own));
        }
    }
    // Versions that are left out, in Go's words.
    let shown = || json!(Some(versions).filter(|versions| !versions.is_empty())).to_string();
    if !is_unique {
        errors.push(Invalid::rendered(
            "spec.versions",
            shown(),
            "must contain unique version names",
        ));
    }
    if stored != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(Invalid::rendered("spec.versions", shown(), detail));
    }
}

fn deprecation(errors: &mut Vec<Invalid>, path: &str, version: &CustomResourceDefinitionVersion) {
    let Some(warning) = &version.deprecation_warning else {
        return;
    };
    let mut refuse = |detail: &str| errors.push(Invalid::value(format!("{path}.deprecationWarning"), warning, detail));
    if version.deprecated != Some(true) {
        refuse("can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        refuse("must be <= 256 characters long");
    }
    if warning.is_empty() {
        refuse("must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, letter)| letter.is_control()) {
        refuse(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// Validates a simple JSON path of names and dots.
fn simple_path(errors: &mut Vec<Invalid>, field: &str, path: &str) -> bool {
    let fits = path.starts_with('.');
    if !fits {
        errors.push(Invalid::value(
            field,
            path,
            "must be a simple json path starting with .",
        ));
    }
    fits
}

fn scale(errors: &mut Vec<Invalid>, path: &str, subresources: &CustomResourceSubresources) {
    let Some(scale) = &subresources.scale else { return };
    let mut check = |name: &str, value: &str, places: &[&str], detail: &str| {
        let field = format!("{path}.scale.{name}");
        if value.is_empty() {
            errors.push(Invalid::required(field, ""));
        } else if simple_path(errors, &field, value) && !places.iter().any(|place| value.starts_with(place)) {
            errors.push(Invalid::value(field, value, detail));
        }
    };
    let (spec, status) = (
        "should be a json path under .spec",
        "should be a json path under .status",
    );
    check("specReplicasPath", &scale.spec_replicas_path, &[".spec."], spec);
    check("statusReplicasPath", &scale.status_replicas_path, &[".status."], status);
    if let Some(selector) = scale.label_selector_path.as_deref().filter(|own| !own.is_empty()) {
        let either = "should be a json path under either .spec or .status";
        check("labelSelectorPath", selector, &[".spec.", ".status."], either);
    }
}

fn column(errors: &mut Vec<Invalid>, path: &str, column: &CustomResourceColumnDefinition) {
    if column.name.is_empty() {
        errors.push(Invalid::required(format!("{path}.name"), ""));
    }
    let types = format!("must be one of {COLUMN_TYPES}");
    if column.type_.is_empty() {
        errors.push(Invalid::required(format!("{path}.type"), types));
    } else if !COLUMN_TYPES.split(',').any(|own| own == column.type_) {
        errors.push(Invalid::value(format!("{path}.type"), &column.type_, types));
    }
    let format = column.format.as_deref().unwrap_or_default();
    if !format.is_empty() && !COLUMN_FORMATS.split(',').any(|own| own == format) {
        let detail = format!("must be one of {COLUMN_FORMATS}");
        errors.push(Invalid::value(format!("{path}.format"), format, detail));
    }
    let field = format!("{path}.JSONPath");
    if column.json_path.is_empty() {
        errors.push(Invalid::required(field, ""));
    } else {
        simple_path(errors, &field, &column.json_path);
    }
}

fn names_at(errors: &mut Vec<Invalid>, path: &str, names: &CustomResourceDefinitionNames) {
    let singular = names.singular.as_deref().unwrap_or_default();
    let list_kind = names.list_kind.as_deref().unwrap_or_default();
    let mixed = "may have mixed case, but should otherwise match: ";
    let checked = [
        ("plural", names.plural.as_str(), names.plural.clone(), ""),
        ("singular", singular, singular.to_owned(), ""),
        ("kind", &names.kind, names.kind.to_lowercase(), mixed),
        ("listKind", list_kind, list_kind.to_lowercase(), mixed),
    ];
    for (name, value, label, prefix) in checked.into_iter().filter(|(_, value, ..)| !value.is_empty()) {
        joined(errors, format!("{path}.{name}"), value, prefix, &dns1035_label(&label));
    }
    labels(errors, &format!("{path}.shortNames"), names.short_names.as_deref());
    if !names.kind.is_empty() && names.kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(Invalid::value(format!("{path}.listKind"), list_kind, detail));
    }
    labels(errors, &format!("{path}.categories"), names.categories.as_deref());
}

fn labels(errors: &mut Vec<Invalid>, path: &str, labels: Option<&[String]>) {
    for (index, label) in labels.unwrap_or_default().iter().enumerate() {
        joined(errors, format!("{path}[{index}]"), label, "", &dns1035_label(label));
    }
}

pub(super) fn immutable_names(new: &CustomResourceDefinition, old: &CustomResourceDefinition) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let (spec, before) = (&new.spec, &old.spec);
    let is_established = old.status.as_ref().is_some_and(|status| is_true(status, "Established"));
    if is_established {
        immutable(&mut errors, "spec.scope", &spec.scope, &before.scope);
        immutable(&mut errors, "spec.names.kind", &spec.names.kind, &before.names.kind);
    }
    immutable(&mut errors, "spec.group", &spec.group, &before.group);
    immutable(
        &mut errors,
        "spec.names.plural",
        &spec.names.plural,
        &before.names.plural,
    );
    errors
}

pub(super) fn accepted_names(definition: &CustomResourceDefinition) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let names = definition
        .status
        .as_ref()
        .and_then(|status| status.accepted_names.as_ref());
    if let Some(names) = names {
        names_at(&mut errors, "status.acceptedNames", names);
    }
    errors
}

/// Validates the status of a definition whose spec is written.
pub(super) fn status(definition: &CustomResourceDefinition) -> Vec<Invalid> {
    const PATH: &str = "status.storedVersions";
    let mut errors = accepted_names(definition);
    let status = definition.status.as_ref();
    let given = status.and_then(|status| status.stored_versions.as_deref());
    let (stored, shown) = (given.unwrap_or_default(), || json!(given).to_string());
    if stored.is_empty() {
        errors.push(Invalid::rendered(
            PATH,
            shown(),
            "must have at least one stored version",
        ));
        return errors;
    }
    let versions = &definition.spec.versions;
    for version in versions.iter().filter(|own| own.storage && !stored.contains(&own.name)) {
        let detail = format!("must have the storage version {}", version.name);
        errors.push(Invalid::rendered(PATH, shown(), detail));
    }
    for (index, version) in stored.iter().enumerate() {
        if !versions.iter().any(|own| own.name == *version) {
            let detail = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {version} and removes {version} from \
                 status.storedVersions"
            );
            errors.push(Invalid::value(format!("{PATH}[{index}]"), version, detail));
        }
    }
    errors
}

pub(super) fn approval(new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Vec<Invalid> {
    if !is_protected(&new.spec.group) {
        return Vec::new();
    }
    let (approval, reason) = approval_of(new);
    if old.is_some_and(|old| approval_of(old).0 == approval) {
        return Vec::new();
    }
    let field = format!("metadata.annotations[{APPROVED}]");
    let annotations = new.metadata.annotations.as_ref();
    match approval {
        Approval::Missing => vec![Invalid::required(field, reason)],
        Approval::Invalid => {
            let text = annotations.and_then(|all| all.get(APPROVED)).cloned();
            vec![Invalid::value(field, text.unwrap_or_default(), reason)]
        }
        Approval::Approved | Approval::Bypassed => Vec::new(),
    }
}

pub(super) fn preserve(new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Vec<Invalid> {
    let before = old.is_some_and(|old| old.spec.preserve_unknown_fields == Some(true));
    if before || new.spec.preserve_unknown_fields != Some(true) {
        return Vec::new();
    }
    let detail =
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
    vec![Invalid::value("spec.preserveUnknownFields", true, detail)]
}
