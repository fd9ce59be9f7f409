//! Validation errors of Jobs and `CronJob`s.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, texts, update_refused, with};

fn indexed(spec: &Value) -> Value {
    let mut whole = json!({ "completionMode": "Indexed", "podFailurePolicy": null });
    if let (Some(whole), Some(spec)) = (whole.as_object_mut(), spec.as_object()) {
        whole.extend(spec.clone());
    }
    json!({ "spec": whole })
}

#[test]
fn fields_that_need_each_other() {
    let cases: Vec<(Value, &[&str])> = vec![
        (
            json!({"spec": {"maxFailedIndexes": 1}}),
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ],
        ),
        (
            indexed(&json!({"parallelism": 100_001})),
            &[
                "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
            ],
        ),
        (
            indexed(&json!({"backoffLimitPerIndex": 1, "completions": 100_001, "parallelism": 10_001})),
            &[
                "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
                "spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
            ],
        ),
        (
            indexed(&json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 6})),
            &["spec.maxFailedIndexes: Invalid value: 6: must be less than or equal to completions"],
        ),
        (
            json!({"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}),
            &["spec.podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\""],
        ),
        (
            json!({"spec": {"managedBy": "me"}}),
            &["spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
        ),
        (
            json!({"spec": {"completionMode": "Indexed"}, "metadata": {"name": "a.b"}}),
            &["metadata.name: Invalid value: \"a.b\": will not able to create pod with invalid DNS label: a.b-4"],
        ),
    ];
    for (patch, expected) in cases {
        refused("batch", "jobs", &patch, expected);
    }
}

#[test]
fn policies_of_failure() {
    let failure = |rule: Value| json!({"spec": {"podFailurePolicy": {"rules": [rule]}}});
    let codes = |codes: Value| failure(json!({"action": "FailJob", "onExitCodes": codes}));
    let rules = "spec.podFailurePolicy.rules[0]";
    all_refused(vec![
        (
            failure(json!({"action": "Stop"})),
            vec![
                format!(
                    "{rules}.action: Unsupported value: \"Stop\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\""
                ),
                format!("{rules}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required"),
            ],
        ),
        (
            failure(json!({"action": "FailIndex", "onPodConditions": [{"type": "X", "status": "Maybe"}]})),
            vec![
                format!("{rules}.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"),
                format!(
                    "{rules}.onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\""
                ),
            ],
        ),
        (
            codes(json!({"containerName": "x", "operator": "In", "values": [3, 0, 3]})),
            vec![
                format!(
                    "{rules}.onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template"
                ),
                format!("{rules}.onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator"),
                format!("{rules}.onExitCodes.values[2]: Duplicate value: 3"),
                format!("{rules}.onExitCodes.values: Invalid value: [3,0,3]: must be ordered"),
            ],
        ),
        (
            codes(json!({"operator": "", "values": []})),
            vec![
                format!("{rules}.onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]"),
                format!("{rules}.onExitCodes.values: Invalid value: []: at least one value is required"),
            ],
        ),
    ]);
}

#[test]
fn policies_of_success() {
    let success = |rule: Value| indexed(&json!({"successPolicy": {"rules": [rule]}}));
    let wins = "spec.successPolicy.rules[0]";
    all_refused(vec![
        (
            success(json!({})),
            vec![format!(
                "{wins}: Required value: at least one of succeededCount or succeededIndexes must be specified"
            )],
        ),
        (
            success(json!({"succeededIndexes": "0,2-3", "succeededCount": 4})),
            vec![format!(
                "{wins}.succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)"
            )],
        ),
        (
            success(json!({"succeededIndexes": "3-5"})),
            vec![format!(
                "{wins}.succeededIndexes: Invalid value: \"3-5\": error parsing succeededIndexes: too large index: \"5\""
            )],
        ),
        (
            success(json!({"succeededIndexes": "3,1"})),
            vec![format!(
                "{wins}.succeededIndexes: Invalid value: \"3,1\": error parsing succeededIndexes: non-increasing order, previous: 3, current: 1"
            )],
        ),
        (success(json!({"succeededIndexes": "0-4", "succeededCount": 5})), vec![]),
    ]);
}

fn all_refused(cases: Vec<(Value, Vec<String>)>) {
    for (patch, expected) in cases {
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        refused("batch", "jobs", &patch, &expected);
    }
}

/// Other fields of an object can still be updated when it was stored under fewer rules.
#[test]
fn what_was_wrong_before_may_stay() {
    let row = find("batch", "v1", "jobs").unwrap();
    let wrong = json!({"spec": {"maxFailedIndexes": 1}});
    let old = with(row, &wrong);
    let new = with(row, &json!({"spec": {"maxFailedIndexes": 1, "suspend": true}}));
    assert!(texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())).is_empty());
    let worse = with(row, &json!({"spec": {"maxFailedIndexes": 2}}));
    assert_eq!(
        row.validate_update(worse.as_ref(), old.as_ref(), &mut Vec::new()).len(),
        1
    );
}

#[test]
fn time_zones() {
    let unknown = |zone: &str| format!("spec.timeZone: Invalid value: {zone:?}: unknown time zone {zone}");
    let local = |zone: &str| {
        format!(
            "spec.timeZone: Invalid value: {zone:?}: timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        )
    };
    let cases = [
        ("Europe/Berlin", vec![]),
        ("Etc/UTC", vec![]),
        ("Mars/Olympus", vec![unknown("Mars/Olympus")]),
        ("AMERICA/new_york", vec![unknown("AMERICA/new_york")]),
        (" Europe/Berlin", vec![unknown(" Europe/Berlin")]),
        ("../etc/passwd", vec![unknown("../etc/passwd")]),
        ("Local", vec![local("Local")]),
        ("local", vec![local("local"), unknown("local")]),
        (
            "",
            vec!["spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string".to_owned()],
        ),
    ];
    for (zone, expected) in cases {
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        refused("batch", "cronjobs", &json!({"spec": {"timeZone": zone}}), &expected);
        update_refused("batch", "cronjobs", &json!({"spec": {"timeZone": zone}}), &expected);
    }
    let template = json!({"spec": {"jobTemplate": {"spec": {"manualSelector": true}}}});
    let expected =
        "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"";
    refused("batch", "cronjobs", &template, &[expected]);
}
