//! The check of policies' types, and the counts of their checks.

use serde_json::json;

use crate::definitions::{eventually, started};
use crate::policies::{BINDINGS, MAPS, POLICIES, guarded, map, policy};
use crate::support::Answer;

#[tokio::test]
async fn the_status_warns_of_expressions_that_do_not_fit_what_is_matched() {
    let api = started().await;
    let healed = api.server.clone();
    let mut upkeep = tokio::task::JoinSet::new();
    upkeep.spawn(async move { healed.heal().await });
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [
            {"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "deployments/scale"]},
            {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["tabs"]},
        ]},
        "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
        "validations": [
            {"expression": "variables.replicas > 1"},
            {
                "expression": "object.spec.template.spec.containers.all(c, c.image.startsWith(params.data['a']))",
                "messageExpression": "string(object.metadata.name) + string(oldObject.kind)",
            },
            {"expression": "object.spec.size > 'x'", "messageExpression": "'size ' + string(object.spec.size)"},
        ],
    });
    let path = format!("{POLICIES}/p");
    assert_eq!(api.post(POLICIES, &policy(&spec)).await.code, 201);
    let checked = |answer: &Answer| answer.json()["status"]["observedGeneration"] == 1;
    eventually(&api, &path, checked).await;
    let status = api.get(&path).await.json()["status"].clone();
    let warning = |index: usize, member: &str, text: &str| json!({"fieldRef": format!("spec.validations[{index}].{member}"), "warning": text});
    let undefined = |kind: &str, column: usize, field: &str, text: &str| {
        let dots = ".".repeat(column - 1);
        format!("{kind}: ERROR: <input>:1:{column}: undefined field '{field}'\n | {text}\n | {dots}^\n")
    };
    let (deployment, tab) = ("apps/v1, Kind=Deployment", "example.com/v1, Kind=Tab");
    let containers = "object.spec.template.spec.containers.all(c, c.image.startsWith(params.data['a']))";
    let size = "object.spec.size > 'x'";
    assert_eq!(
        status["typeChecking"]["expressionWarnings"],
        json!([
            warning(1, "expression", &undefined(tab, 12, "template", containers)),
            warning(
                2,
                "expression",
                &format!(
                    "{}\n{tab}: ERROR: <input>:1:18: found no matching overload for '_>_' applied to '(int, string)'\n | \
                     {size}\n | .................^\n",
                    undefined(deployment, 12, "size", size)
                )
            ),
            warning(
                2,
                "messageExpression",
                &undefined(deployment, 29, "size", "'size ' + string(object.spec.size)")
            ),
        ]),
        "{status:#}"
    );
    // A reserved word is a name of a field, too.
    let expression = "has(object.metadata.labels) || object.metadata.namespace == 'a'";
    let change = json!({"spec": {"validations": [{"expression": expression}]}});
    assert_eq!(api.patch(&path, "merge-patch+json", &change).await.code, 200);
    eventually(&api, &path, |answer| answer.json()["status"]["observedGeneration"] == 2).await;
    let status = api.get(&path).await.json()["status"].clone();
    assert!(status["typeChecking"]["expressionWarnings"].is_null(), "{status}");
}

#[tokio::test]
async fn checks_are_counted_by_what_came_of_them() {
    let api = guarded(
        &json!({"validations": [{"expression": "object.data.a == 'x'"}]}),
        &json!({"validationActions": ["Warn", "Audit"]}),
    )
    .await;
    assert_eq!(api.post(MAPS, &map("m", &json!({"a": "y"}))).await.code, 201);
    let page = api.get("/metrics").await.text();
    for action in ["warn", "audit"] {
        let wanted = format!(
            "apiserver_validating_admission_policy_check_total{{policy=\"p\",policy_binding=\"b\",error_type=\"invalid_error\",\
             enforcement_action=\"{action}\"}} 1"
        );
        assert!(page.contains(&wanted), "no {wanted}");
    }
    assert!(page.contains("apiserver_validating_admission_policy_check_duration_seconds_count{policy=\"p\""));
}

#[tokio::test]
async fn attack_policies_end_with_the_time_of_their_request() {
    let long = json!({"expression": "lists.range(150).all(i, lists.range(1000).all(j, i + j >= 0))"});
    let spec = json!({"failurePolicy": "Ignore", "validations": vec![long; 10]});
    let api = guarded(&spec, &json!({})).await;
    for number in 0..60 {
        let more = json!({"metadata": {"name": format!("b{number}")},
            "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        assert_eq!(api.post(BINDINGS, &more).await.code, 201);
    }
    let answer = api.post(&format!("{MAPS}?timeout=500ms"), &map("m", &json!({}))).await;
    let message = "Timeout: request did not complete within requested timeout - context deadline exceeded";
    assert_eq!((answer.code.as_u16(), answer.message().as_str()), (504, message));
    assert_eq!(api.get(&format!("{MAPS}/m")).await.code, 404);
}
