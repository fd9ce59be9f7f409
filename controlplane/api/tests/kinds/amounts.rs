//! Validation of kinds that limit resources, and of templates.

use serde_json::{Value, json};

use crate::refused::{refused, update_refused};

fn limits(item: &Value) -> Value {
    json!({"spec": {"limits": [item]}})
}

fn container(lists: &Value) -> Value {
    let mut item = lists.clone();
    item["type"] = json!("Container");
    limits(&item)
}

#[test]
fn limit_ranges() {
    for (patch, expected) in [
        (
            limits(&json!({"type": "Node"})),
            "spec.limits[0].type: Invalid value: \"Node\": must be a standard limit type or fully qualified",
        ),
        (
            json!({"spec": {"limits": [{"type": "Pod"}, {"type": "Pod"}]}}),
            "spec.limits[1].type: Duplicate value: \"Pod\"",
        ),
        (
            limits(&json!({"type": "Pod", "default": {"cpu": "1"}})),
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
        ),
        (
            limits(&json!({"type": "PersistentVolumeClaim"})),
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ),
        (
            limits(&json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}})),
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
        ),
        (
            container(&json!({"max": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}})),
            "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 2 is greater than max value 1",
        ),
        (
            container(&json!({"default": {"cpu": "500m"}, "defaultRequest": {"cpu": "800m"}})),
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"800m\": default request value 800m is greater than default limit value 500m",
        ),
        (
            limits(&json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "800m"}})),
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"800m\": ratio 800m is less than 1",
        ),
        (
            limits(
                &json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "10"}}),
            ),
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"10\": ratio 10 is greater than max/min = 2.000000",
        ),
    ] {
        refused("", "limitranges", &patch, &[expected]);
    }
}

fn hard(hard: &Value) -> Value {
    json!({"spec": {"hard": hard, "scopes": null}})
}

fn selector(demand: &Value) -> Value {
    json!({"spec": {"scopes": null, "scopeSelector": {"matchExpressions": [demand]}}})
}

#[test]
fn quotas() {
    for (patch, expected) in [
        (
            hard(&json!({"storage": "1"})),
            "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
        ),
        (
            hard(&json!({"pods": "500m"})),
            "spec.hard[pods]: Invalid value: \"500m\": must be an integer",
        ),
        (
            hard(&json!({"cpu": "-10"})),
            "spec.hard[cpu]: Invalid value: \"-10\": must be greater than or equal to 0",
        ),
        (
            json!({"spec": {"scopes": ["Terminating", "NotTerminating"]}}),
            "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes",
        ),
        (
            json!({"spec": {"scopes": ["InvalidScope"]}}),
            "spec.scopes: Invalid value: [\"InvalidScope\"]: unsupported scope",
        ),
        (
            json!({"spec": {"hard": {"services": "1"}}}),
            "spec.scopes: Invalid value: [\"NotTerminating\"]: unsupported scope applied to resource",
        ),
        (
            selector(&json!({"scopeName": "PriorityClass", "operator": "In"})),
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ),
        (
            selector(&json!({"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]})),
            "spec.scopeSelector.matchExpressions.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector",
        ),
        (
            selector(&json!({"scopeName": "PriorityClass", "operator": "Like"})),
            "spec.scopeSelector.matchExpressions.operator: Invalid value: \"Like\": not a valid selector operator",
        ),
    ] {
        refused("", "resourcequotas", &patch, &[expected]);
    }
    refused(
        "",
        "resourcequotas",
        &hard(&json!({"count/jobs.batch": "1", "hugepages-2Mi": "1Gi"})),
        &[],
    );
    let changed = ["spec.scopes: Invalid value: null: field is immutable"];
    update_refused("", "resourcequotas", &json!({"spec": {"scopes": null}}), &changed);
}

#[test]
fn templates_and_revisions() {
    let revisions = ("apps", "controllerrevisions");
    for ((group, plural), patch, expected) in [
        (
            ("", "podtemplates"),
            json!({"template": {"spec": {"containers": null}}}),
            "template.spec.containers: Required value",
        ),
        (
            ("", "podtemplates"),
            json!({"template": {"metadata": {"labels": {"a": "b c"}}}}),
            "template.labels: Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
        (
            revisions,
            json!({"data": null}),
            "data: Required value: data is mandatory",
        ),
        (
            revisions,
            json!({"revision": -1}),
            "revision: Invalid value: -1: must be greater than or equal to 0",
        ),
    ] {
        refused(group, plural, &patch, &[expected]);
    }
    let changed =
        ["data: Invalid value: {\"a\":1,\"spec\":{\"template\":{\"spec\":{\"containers\":[]}}}}: field is immutable"];
    update_refused("apps", "controllerrevisions", &json!({"data": {"a": 1}}), &changed);
}

#[test]
fn flow_schemas() {
    let rule = |rule: &Value| json!({"spec": {"rules": [rule]}});
    let subject = |subject: &Value| {
        rule(&json!({"subjects": [subject], "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["*"]}]}))
    };
    let resources =
        |own: &Value| rule(&json!({"subjects": [{"kind": "User", "user": {"name": "a"}}], "resourceRules": [own]}));
    for (patch, expected) in [
        (
            json!({"spec": {"matchingPrecedence": 1}}),
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
        ),
        (
            json!({"spec": {"matchingPrecedence": 10001}}),
            "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000",
        ),
        (
            json!({"spec": {"priorityLevelConfiguration": {"name": ""}}}),
            "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
        ),
        (
            rule(&json!({"subjects": [{"kind": "User", "user": {"name": "a"}}]})),
            "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
        ),
        (
            subject(&json!({"kind": "User"})),
            "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
        ),
        (
            subject(&json!({"kind": "Group", "group": {"name": "g"}, "user": {"name": "u"}})),
            "spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'",
        ),
        (
            subject(&json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": ""}})),
            "spec.rules[0].subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account",
        ),
        (
            resources(&json!({"verbs": ["get"], "apiGroups": ["*"], "resources": ["pods"]})),
            "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
        ),
        (
            resources(&json!({"verbs": ["*", "get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]})),
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs",
        ),
    ] {
        refused("flowcontrol.apiserver.k8s.io", "flowschemas", &patch, &[expected]);
    }
}

#[test]
fn priority_levels() {
    let queuing = |queuing: &Value| json!({"spec": {"limited": {"limitResponse": {"queuing": queuing}}}});
    for (patch, expected) in [
        (
            json!({"metadata": {"name": "exempt"}}),
            "spec.type: Invalid value: \"Limited\": type must be 'Exempt' if and only if name is 'exempt'",
        ),
        (
            json!({"spec": {"limited": null}}),
            "spec.limited: Required value: must not be empty when type is Limited",
        ),
        (
            json!({"spec": {"limited": {"limitResponse": {"type": "Reject"}}}}),
            "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
        ),
        (
            json!({"spec": {"limited": {"lendablePercent": 101}}}),
            "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
        ),
        (
            queuing(&json!({"queues": 8, "handSize": 9})),
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 9: should not be greater than queues (8)",
        ),
        (
            queuing(&json!({"queues": 512, "handSize": 8})),
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: required entropy bits of deckSize 512 and handSize 8 should not be greater than 60",
        ),
    ] {
        refused(
            "flowcontrol.apiserver.k8s.io",
            "prioritylevelconfigurations",
            &patch,
            &[expected],
        );
    }
}
