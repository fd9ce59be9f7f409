//! Validation of references to fields of the pod.

use k8s_openapi::api::core::v1::ObjectFieldSelector;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, required};

/// Pod fields that upstream supports anywhere.
const FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.terminationGracePeriodSeconds",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

/// Validates a reference to a field of the pod: one of a set, or one label or annotation.
pub(in crate::workload::validation) fn validate(
    errors: &mut Vec<Invalid>,
    selector: &ObjectFieldSelector,
    path: &str,
    known: &[&str],
) {
    let field = format!("{path}.fieldPath");
    let wanted = selector.field_path.as_str();
    if !required(errors, &field, Some(wanted)) {
        return;
    }
    if let Some(version) = selector
        .api_version
        .as_deref()
        .filter(|version| !["", "v1"].contains(version))
    {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        return errors.push(Invalid::value(field, wanted, detail));
    }
    if known.contains(&wanted) {
        return;
    }
    let subscript = wanted.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    let because = match subscript.filter(|(map, _)| !map.is_empty()) {
        Some(("metadata.annotations", key)) => {
            return each(errors, path, key, names::qualified_name(&key.to_ascii_lowercase()));
        }
        Some(("metadata.labels", key)) => return each(errors, path, key, names::qualified_name(key)),
        None if FIELDS.contains(&wanted) => {
            return errors.push(Invalid::not_supported(field, wanted, known));
        }
        Some(_) => "does not support subscript",
        None => "not supported",
    };
    let detail = format!("error converting fieldPath: field label {because}: {wanted}");
    errors.push(Invalid::value(field, wanted, detail));
}
