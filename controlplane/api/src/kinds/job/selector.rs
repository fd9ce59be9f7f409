//! Selector of a Job: its own pods and no others.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::value::invalid::Invalid;
use crate::value::selector::LabelSelector;

/// Label with the job's uid, by which its pods are selected.
pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// Label with the job's name.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Errors of a selector that is not the generated one, unless `manualSelector` is set
/// (`validateGeneratedSelector` of `pkg/apis/batch/validation/validation.go`).
pub(super) fn validate(metadata: &ObjectMeta, spec: &JobSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let Some(selector) = spec.selector.as_ref().filter(|_| spec.manual_selector != Some(true)) else {
        return errors;
    };
    let uid = metadata.uid.clone().unwrap_or_default();
    let name = metadata.name.clone().unwrap_or_default();
    if uid.is_empty() {
        errors.push(Invalid::required("metadata.uid", ""));
    }
    let own = spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    let expected = [
        ("controller-uid", &uid),
        ("job-name", &name),
        (CONTROLLER_UID, &uid),
        (JOB_NAME, &name),
    ];
    let field = |key: &str| format!("spec.template.metadata.labels[{key}]");
    for (key, value) in expected {
        match own.and_then(|labels| labels.get(key)) {
            Some(found) if found == value => {}
            Some(_) => {
                let shown = serde_json::to_string(&own).unwrap_or_default();
                errors.push(Invalid::rendered(field(key), shown, format!("must be '{value}'")));
            }
            None => errors.push(Invalid::required(field(key), format!("must be '{value}'"))),
        }
    }
    let labels: BTreeMap<String, String> = expected.map(|(key, value)| (key.to_owned(), value.clone())).into();
    if LabelSelector::of(Some(selector)).is_ok_and(|selector| !selector.matches_option(Some(&labels))) {
        let value = serde_json::to_string(selector).unwrap_or_default();
        errors.push(Invalid::rendered(
            "spec.selector",
            value,
            "`selector` not auto-generated",
        ));
    }
    errors
}

/// Makes the job select its own pods and no others, unless there are conflicting labels: validation
/// rejects those.
pub(super) fn generate(spec: &mut JobSpec, name: &str, uid: &str) {
    let labels = spec
        .template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    for (key, value) in [
        (JOB_NAME, name),
        ("job-name", name),
        (CONTROLLER_UID, uid),
        ("controller-uid", uid),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let selected = spec
        .selector
        .get_or_insert_default()
        .match_labels
        .get_or_insert_default();
    selected
        .entry(CONTROLLER_UID.to_owned())
        .or_insert_with(|| uid.to_owned());
}
