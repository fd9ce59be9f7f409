//! Affinity terms of pods with label keys.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, with};

/// Spec of a pod that is created with these labels.
fn made(labels: &Value, spec: &Value) -> Value {
    let row = find("", "v1", "pods").unwrap();
    let mut pod = with(row, &json!({"metadata": {"labels": labels}, "spec": spec}));
    row.prepare_create(pod.as_mut());
    serde_json::from_slice::<Value>(&pod.to_json()).unwrap()["spec"].clone()
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[test]
fn they_get_what_the_pods_labels_say() {
    let term = json!({"topologyKey": "t", "labelSelector": {"matchLabels": {"app": "a"}},
        "matchLabelKeys": ["hash", "absent"], "mismatchLabelKeys": ["team"]});
    let without = json!({"topologyKey": "t", "matchLabelKeys": ["hash"]});
    let spread = json!({"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}, "matchLabelKeys": ["hash"]});
    let spec = made(
        &json!({"hash": "1", "team": "b"}),
        &json!({"topologySpreadConstraints": [spread], "affinity": {
            "podAffinity": {REQUIRED: [term, without]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}}}),
    );
    let merged = json!([
        {"key": "hash", "operator": "In", "values": ["1"]},
        {"key": "team", "operator": "NotIn", "values": ["b"]},
    ]);
    let affinity = &spec["affinity"];
    let own = &affinity["podAffinity"][REQUIRED];
    assert_eq!(own[0]["labelSelector"]["matchExpressions"], merged);
    assert_eq!(own[0]["matchLabelKeys"], json!(["hash", "absent"]));
    assert_eq!(own[1].get("labelSelector"), None, "it means no pod");
    let others = &affinity["podAntiAffinity"][PREFERRED][0]["podAffinityTerm"];
    assert_eq!(others["labelSelector"]["matchExpressions"], merged);
    assert_eq!(
        spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
        json!([{"key": "x", "operator": "Exists"}, {"key": "hash", "operator": "In", "values": ["1"]}]),
    );
}

#[test]
fn they_name_each_label_once() {
    let path = format!("spec.affinity.podAffinity.{REQUIRED}");
    let both =
        json!({"topologyKey": "t", "labelSelector": {"matchLabels": {"hash": "1"}}, "matchLabelKeys": ["a b", "hash"]});
    let twice =
        json!({"topologyKey": "t", "labelSelector": {}, "matchLabelKeys": ["hash"], "mismatchLabelKeys": ["hash"]});
    let without = json!({"topologyKey": "t", "mismatchLabelKeys": ["hash"]});
    let no_name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    refused(
        "",
        "pods",
        &json!({"metadata": {"labels": {"hash": "1"}},
            "spec": {"affinity": {"podAffinity": {REQUIRED: [both, twice, without]}}}}),
        &[
            &format!("{path}[0].matchLabelKeys[0]: Invalid value: \"a b\": {no_name}"),
            &format!("{path}[0][1]: Invalid value: \"hash\": exists in both matchLabelKeys and labelSelector"),
            &format!("{path}[1][0]: Invalid value: \"hash\": exists in both matchLabelKeys and labelSelector"),
            &format!(
                "{path}[1].matchLabelKeys[0]: Invalid value: \"hash\": exists in both matchLabelKeys and mismatchLabelKeys"
            ),
            &format!("{path}[2].mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ],
    );
}

#[test]
fn constraints_of_spreading() {
    let spread = json!({"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "X", "minDomains": 0,
        "nodeAffinityPolicy": "A", "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["hash"]});
    let path = "spec.topologySpreadConstraints[0]";
    refused(
        "",
        "pods",
        &json!({"spec": {"topologySpreadConstraints": [spread]}}),
        &[
            &format!(
                "{path}.whenUnsatisfiable: Unsupported value: \"X\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\""
            ),
            &format!("{path}.minDomains: Invalid value: 0: must be greater than zero"),
            &format!(
                "{path}.minDomains: Invalid value: 0: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not X"
            ),
            &format!("{path}.nodeAffinityPolicy: Unsupported value: \"A\": supported values: \"Honor\", \"Ignore\""),
            &format!("{path}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ],
    );
}
