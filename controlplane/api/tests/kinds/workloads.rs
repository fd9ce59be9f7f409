//! Validation errors of workloads, in upstream's words.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::every::fixture;
use crate::refused::{refused, texts, update_refused, with};

#[test]
fn selectors_of_workloads() {
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": null}}),
        &[
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: {\"app\":\"nginx\"}: `selector` does not match template `labels`",
        ],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": []}}}),
        &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}}),
        &[
            "spec.selector.matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator",
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"nginx\"},\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Like\"}]}: invalid label selector",
        ],
    );
    refused(
        "apps",
        "daemonsets",
        &json!({"spec": {"selector": null, "template": {"metadata": {"labels": null}}}}),
        &["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    );
    refused(
        "apps",
        "replicasets",
        &json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": []}, "template": {"spec": {"activeDeadlineSeconds": 5}}}}),
        &[
            "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        ],
    );
}

#[test]
fn an_empty_selector_is_not_a_missing_one() {
    let empty = |plural: &str, name: &str| {
        let row = find("apps", "v1", plural).unwrap();
        let mut value: Value = serde_json::from_slice(&fixture(row)).unwrap();
        value["spec"]["selector"] = json!({});
        let (mut object, _) = row.decode_reporting(value.to_string().as_bytes()).unwrap();
        row.set_defaults(object.as_mut());
        let mut old = with(row, &json!({}));
        row.prepare_create(old.as_mut());
        row.prepare_update(object.as_mut(), old.as_ref());
        let said = format!("spec.selector: Invalid value: {{}}: empty selector is invalid for {name}");
        assert_eq!(texts(&row.validate(object.as_ref())), [said.as_str()], "{plural}");
        texts(&row.validate_update(object.as_ref(), old.as_ref(), &mut Vec::new()))
    };
    let immutable = "spec.selector: Invalid value: {}: field is immutable";
    for (plural, name) in [
        ("deployments", "deployment"),
        ("replicasets", "deployment"),
        ("daemonsets", "daemonset"),
    ] {
        assert_eq!(empty(plural, name).last().unwrap(), immutable, "{plural}");
    }
    empty("statefulsets", "statefulset");
}

#[test]
fn deployments() {
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"replicas": -1}}),
        &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
        &[
            "spec.template.metadata.labels: Invalid value: {\"app\":\"nginx\"}: `selector` does not match template `labels`",
        ],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}}),
        &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"strategy": {"type": "Sideways"}}}),
        &[
            "spec.strategy: Unsupported value: {\"Type\":\"Sideways\",\"RollingUpdate\":null}: supported values: \"Recreate\", \"RollingUpdate\"",
        ],
    );
    refused(
        "apps",
        "deployments",
        &json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}}),
        &[
            "spec.template.spec.containers: Required value",
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ],
    );
    update_refused(
        "apps",
        "deployments",
        &json!({"spec": {"selector": {"matchLabels": {"app": null, "a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}}}),
        &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable"],
    );
}

/// An indexed job can be resized with its parallelism.
#[test]
fn completions_of_indexed_jobs_follow_their_parallelism() {
    let row = find("batch", "v1", "jobs").unwrap();
    let job = |mode: &str, parallelism: i32, completions: i32| {
        let spec = json!({"completionMode": mode, "parallelism": parallelism, "completions": completions});
        with(row, &json!({ "spec": spec }))
    };
    for (mode, parallelism, completions, wanted) in [
        ("Indexed", 3, 3, None),
        ("Indexed", 7, 5, None),
        (
            "Indexed",
            2,
            3,
            Some("3: can only be modified in tandem with spec.parallelism"),
        ),
        ("NonIndexed", 3, 3, Some("3: field is immutable")),
        ("NonIndexed", 3, 5, None),
    ] {
        let found = row.validate_update(
            job(mode, parallelism, completions).as_ref(),
            job(mode, 2, 5).as_ref(),
            &mut Vec::new(),
        );
        let found: Vec<String> = texts(&found)
            .into_iter()
            .filter(|text| text.contains("completions"))
            .collect();
        let wanted: Vec<String> = wanted
            .iter()
            .map(|text| format!("spec.completions: Invalid value: {text}"))
            .collect();
        assert_eq!(found, wanted, "{mode} {parallelism} {completions}");
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// The names of a StatefulSet's pods begin with its own, and are host names.
#[test]
fn names_of_stateful_sets_are_labels() {
    let name = json!({"metadata": {"name": "a.b"}});
    refused(
        "apps",
        "statefulsets",
        &name,
        &["metadata.name: Invalid value: \"a.b\": must not contain dots"],
    );
    // One of an older server can still be changed.
    let row = find("apps", "v1", "statefulsets").unwrap();
    let (old, new) = (with(row, &name), with(row, &name));
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
}

#[test]
fn templates_of_stateful_sets() {
    let set = |spec: Value, expected: &[&str]| refused("apps", "statefulsets", &json!({ "spec": spec }), expected);
    set(
        json!({"template": {"spec": {"containers": []}}}),
        &["spec.template.spec.containers: Required value"],
    );
    // A claim's volume replaces the template's volume of the same name.
    set(json!({"template": {"spec": {"volumes": [{"name": "data"}]}}}), &[]);
    // The controller sets both names itself.
    set(
        json!({"template": {"spec": {"hostname": "A_b", "subdomain": "A_b"}}}),
        &[],
    );
    set(
        json!({"volumeClaimTemplates": null}),
        &["spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"data\""],
    );
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let name = |name: &str| json!({"metadata": {"name": name}, "spec": claim});
    set(
        json!({"volumeClaimTemplates": [name("data"), name("A_"), name("data")]}),
        &[&format!(
            "spec.template.spec.volumes[1].name: Invalid value: \"A_\": {LABEL}"
        )],
    );
    set(
        json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}], "serviceName": "A_b"}),
        &[
            "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
            "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            &format!("spec.serviceName: Invalid value: \"A_b\": {LABEL}"),
        ],
    );
    set(json!({"revisionHistoryLimit": -1}), &[]);
    let on_delete = json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 2}}});
    set(
        on_delete,
        &[
            "spec.updateStrategy.rollingUpdate: Invalid value: {\"Partition\":2,\"MaxUnavailable\":null}: only allowed for \
           updateStrategy 'RollingUpdate'",
        ],
    );
}

#[test]
fn strategies_of_stateful_sets() {
    let row = find("apps", "v1", "statefulsets").unwrap();
    let stored = |strategy: Value| {
        let set = json!({"spec": {"updateStrategy": strategy}});
        let mut set = row.decode(set.to_string().as_bytes()).unwrap();
        row.set_defaults(set.as_mut());
        let shown: Value = serde_json::from_slice(&set.to_json()).unwrap();
        shown["spec"]["updateStrategy"].clone()
    };
    let first = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    assert_eq!(stored(Value::Null), first);
    assert_eq!(stored(json!({"rollingUpdate": {}})), first);
    assert_eq!(stored(json!({"type": "RollingUpdate", "rollingUpdate": {}})), first);
    for kind in ["RollingUpdate", "OnDelete"] {
        assert_eq!(stored(json!({ "type": kind })), json!({ "type": kind }));
    }
}

/// The gate `MaxUnavailableStatefulSet` is off: only a set that has the field keeps it.
#[test]
fn a_stateful_set_gets_no_max_unavailable() {
    let row = find("apps", "v1", "statefulsets").unwrap();
    let most = |most: Value| json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": most}}}});
    let kept = |set: &dyn controlplane_api::Object| {
        let shown: Value = serde_json::from_slice(&set.to_json()).unwrap();
        shown["spec"]["updateStrategy"]["rollingUpdate"].clone()
    };
    let mut made = with(row, &most(json!(-1)));
    row.prepare_create(made.as_mut());
    assert_eq!(kept(made.as_ref()), json!({"partition": 0}));
    let mut new = with(row, &most(json!(2)));
    row.prepare_update(new.as_mut(), made.as_ref());
    assert_eq!(kept(new.as_ref()), json!({"partition": 0}));

    let old = with(row, &most(json!(1)));
    let field = "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value";
    for (value, said) in [
        (json!(-1), Some("-1: must be greater than or equal to 0")),
        (json!("0%"), Some("\"0%\": cannot be 0")),
        (json!("101%"), Some("\"101%\": must not be greater than 100%")),
        (json!("100%"), None),
    ] {
        let mut new = with(row, &most(value.clone()));
        row.prepare_update(new.as_mut(), old.as_ref());
        assert_eq!(kept(new.as_ref())["maxUnavailable"], value);
        let expected: Vec<String> = said.iter().map(|said| format!("{field}: {said}")).collect();
        assert_eq!(
            texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
            expected
        );
    }
}

#[test]
fn stateful_sets_that_were_wrong_may_stay() {
    let row = find("apps", "v1", "statefulsets").unwrap();
    let none = json!({"spec": {"template": {"spec": {"containers": []}}}});
    update_refused(
        "apps",
        "statefulsets",
        &none,
        &["spec.template.spec.containers: Required value"],
    );
    let stored = json!({"spec": {
        "template": {"spec": {"containers": []}}, "serviceName": "A_b", "volumeClaimTemplates": [{"metadata": {"name": "A_"}}],
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}},
    }});
    let (old, mut new) = (with(row, &stored), with(row, &stored));
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
    // The scale can change, the service name cannot.
    row.set_scale(new.as_mut(), 7);
    assert_eq!(
        texts(&row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
}

#[test]
fn a_job_without_labels_has_those_of_its_template() {
    let row = find("batch", "v1", "jobs").unwrap();
    let made = |labels: Value| {
        let mut job = with(
            row,
            &json!({"metadata": {"name": "pi", "uid": "u", "labels": labels}, "spec": {"template": {"metadata": null}}}),
        );
        row.prepare_create(job.as_mut());
        serde_json::to_value(&job.metadata().labels).unwrap()
    };
    assert_eq!(
        made(Value::Null),
        json!({
            "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "pi",
            "controller-uid": "u", "job-name": "pi",
        })
    );
    assert_eq!(made(json!({"a": "b"})), json!({"a": "b"}));
}

/// Its pods would not be its own otherwise, and it would make others without end.
#[test]
fn the_labels_of_a_suspended_job_still_match() {
    let row = find("batch", "v1", "jobs").unwrap();
    let mut old = with(row, &json!({"spec": {"suspend": true}}));
    row.prepare_create(old.as_mut());
    let made = |label: &str| {
        let mut new: Value = serde_json::from_slice(&old.to_json()).unwrap();
        let labels = new["spec"]["template"]["metadata"]["labels"].as_object_mut().unwrap();
        labels.insert("queue".to_owned(), "a".into());
        labels.remove(label);
        row.decode(new.to_string().as_bytes()).unwrap()
    };
    let without = |label: &str| texts(&row.validate_update(made(label).as_ref(), old.as_ref(), &mut Vec::new()));
    assert_eq!(without("none"), Vec::<String>::new());
    assert_eq!(
        without("batch.kubernetes.io/controller-uid"),
        [
            "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]: Required value: must be \
             '6d0bbc40-2e2e-4f9a-a0b5-000000000002'",
            "spec.template.metadata.labels: Invalid value: {\"batch.kubernetes.io/job-name\":\"pi\",\
             \"controller-uid\":\"6d0bbc40-2e2e-4f9a-a0b5-000000000002\",\"job-name\":\"pi\",\"queue\":\"a\"}: \
             `selector` does not match template `labels`",
        ]
    );
    // One that was stored before these rules is no trap.
    let bare = made("batch.kubernetes.io/controller-uid");
    assert_eq!(
        texts(&row.validate_update(bare.as_ref(), bare.as_ref(), &mut Vec::new())),
        Vec::<String>::new()
    );
}

#[test]
fn a_suspended_job_may_change_where_its_pods_run_and_what_they_request() {
    let row = find("batch", "v1", "jobs").unwrap();
    let mut made = with(row, &json!({}));
    row.prepare_create(made.as_mut());
    let made: Value = serde_json::from_slice(&made.to_json()).unwrap();
    let began = "2026-01-01T00:00:00Z";
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    for (suspend, status, allowed) in [
        (true, json!({}), true),
        (false, json!({}), false),
        (true, json!({"startTime": began}), false),
        (true, json!({"startTime": began, "conditions": suspended}), true),
        (
            true,
            json!({"startTime": began, "conditions": suspended, "active": 1}),
            false,
        ),
    ] {
        let mut old = made.clone();
        old["spec"]["suspend"] = suspend.into();
        old["status"] = status;
        let mut new = old.clone();
        let spec = &mut new["spec"]["template"]["spec"];
        spec["nodeSelector"] = json!({"zone": "a"});
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        let decode = |job: &Value| row.decode(job.to_string().as_bytes()).unwrap();
        let errors = row.validate_update(decode(&new).as_ref(), decode(&old).as_ref(), &mut Vec::new());
        assert_eq!(errors.is_empty(), allowed, "{old}");
    }
}

#[test]
fn the_selector_of_a_job_is_one() {
    let selector = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
    refused(
        "batch",
        "jobs",
        &json!({"spec": {"manualSelector": true, "selector": selector}}),
        &["spec.selector.matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"],
    );
}
