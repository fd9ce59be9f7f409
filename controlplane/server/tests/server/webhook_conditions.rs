//! Match conditions of webhooks.

use serde_json::{Value, json};

use crate::support::webhook::{MUTATING, VALIDATING, Webhook, configure};
use crate::support::{Answer, Api, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn conditions(expressions: &[&str]) -> Value {
    let conditions = expressions.iter().enumerate();
    let conditions =
        conditions.map(|(index, expression)| json!({"name": format!("c{index}"), "expression": expression}));
    conditions.collect()
}

/// A server with a webhook that refuses everything, but only where these conditions hold.
async fn guarded(path: &str, policy: &str, expressions: &[&str]) -> (Api, Webhook) {
    let api = Api::start().await;
    let hook = Webhook::refusing().await;
    let mut entry = hook.entry("one.example.com");
    entry["failurePolicy"] = json!(policy);
    entry["matchConditions"] = conditions(expressions);
    configure(&api, path, "one", json!([entry])).await;
    (api, hook)
}

fn map(name: &str, data: &Value) -> Value {
    let mut map = config_map(name);
    map["data"] = data.clone();
    map
}

fn refused(answer: &Answer, code: u16, wanted: &str) {
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (code, wanted),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_webhook_is_asked_where_all_its_conditions_hold() {
    for path in [VALIDATING, MUTATING] {
        let (api, hook) = guarded(
            path,
            "Fail",
            &[
                "request.operation == 'DELETE' ? oldObject.data.guard == 'yes' : object.data.guard == 'yes'",
                "!('system:nodes' in request.userInfo.groups) && request.resource.resource == 'configmaps'",
                "request.operation != 'UPDATE' || object.data != oldObject.data",
            ],
        )
        .await;
        assert_eq!(api.post(MAPS, &map("free", &json!({"guard": "no"}))).await.code, 201);
        let held = api.post(MAPS, &map("held", &json!({"guard": "yes"}))).await;
        refused(
            &held,
            400,
            "admission webhook \"one.example.com\" denied the request: no",
        );
        let changed = json!({"data": {"guard": "yes"}});
        let held = api.patch(&format!("{MAPS}/free"), "merge-patch+json", &changed).await;
        refused(
            &held,
            400,
            "admission webhook \"one.example.com\" denied the request: no",
        );
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        let free = api.patch(&format!("{MAPS}/free"), "merge-patch+json", &labels).await;
        assert_eq!(free.code, 200, "{}", free.text());
        assert_eq!(api.delete(&format!("{MAPS}/free"), "").await.code, 200);
        assert_eq!(
            hook.brief(),
            ["CREATE configmaps default/held", "UPDATE configmaps default/free"]
        );
    }
}

#[tokio::test]
async fn the_failure_policy_decides_where_a_condition_fails() {
    let fails = [
        "object.data.x == 'y'",
        "object.metadata.name != 'other'",
        "object.data.z == 'y'",
    ];
    let (api, hook) = guarded(VALIDATING, "Fail", &fails).await;
    refused(
        &api.post(MAPS, &map("m", &json!({"a": "b"}))).await,
        403,
        "configmaps \"m\" is forbidden: [expression 'object.data.x == 'y'' resulted in error: no such key: x, expression \
         'object.data.z == 'y'' resulted in error: no such key: z]",
    );
    let other = api.post(MAPS, &map("other", &json!({"a": "b"}))).await;
    assert_eq!(other.code, 201, "one that is false decides: {}", other.text());
    let (open, ignored) = guarded(VALIDATING, "Ignore", &fails).await;
    assert_eq!(open.post(MAPS, &map("m", &json!({"a": "b"}))).await.code, 201);
    assert!(hook.brief().is_empty() && ignored.brief().is_empty());
}

#[tokio::test]
async fn conditions_ask_the_authorizer() {
    let (api, hook) = guarded(
        VALIDATING,
        "Fail",
        &[
            "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()",
            "authorizer.requestResource.check('create').allowed() && authorizer.path('/metrics').check('get').allowed()",
            "!authorizer.serviceAccount('default', 'nobody').group('').resource('configmaps').check('create').allowed()",
        ],
    )
    .await;
    api.post(MAPS, &config_map("m")).await;
    assert_eq!(hook.brief(), ["CREATE configmaps default/m"]);
}

#[tokio::test]
async fn costly_conditions_are_given_up() {
    let nested = "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != ''))))";
    let (api, hook) = guarded(VALIDATING, "Fail", &[nested]).await;
    let many: serde_json::Map<String, Value> = (0..60).map(|index| (format!("k{index}"), json!("v"))).collect();
    let answer = api.post(MAPS, &map("m", &Value::Object(many))).await;
    refused(
        &answer,
        403,
        &format!(
            "configmaps \"m\" is forbidden: expression '{nested}' resulted in error: operation cancelled: actual cost limit \
             exceeded"
        ),
    );
    assert!(hook.brief().is_empty());
}

#[tokio::test]
async fn conditions_that_do_not_compile_are_refused_with_the_configuration() {
    let api = Api::start().await;
    let hook = Webhook::admitting().await;
    for (expression, wanted) in [
        (
            "object.metadata.name",
            "webhooks[0].matchConditions[0].expression: Invalid value: \"object.metadata.name\": must evaluate to bool but got \
             dyn",
        ),
        (
            "request.nam == 'x'",
            "webhooks[0].matchConditions[0].expression: Invalid value: \"request.nam == 'x'\": compilation failed: ERROR: \
             <input>:1:8: undefined field 'nam'\n | request.nam == 'x'\n | .......^",
        ),
        (
            "params.x == 'x'",
            "webhooks[0].matchConditions[0].expression: Invalid value: \"params.x == 'x'\": compilation failed: ERROR: \
             <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 'x'\n | ^",
        ),
        ("  ", "webhooks[0].matchConditions[0].expression: Required value"),
    ] {
        let mut entry = hook.entry("one.example.com");
        entry["matchConditions"] = conditions(&[expression]);
        let configuration = json!({"metadata": {"name": "one"}, "webhooks": [entry]});
        let answer = api.post(VALIDATING, &configuration).await;
        assert_eq!(answer.code, 422, "{}", answer.text());
        assert!(
            answer.message().ends_with(wanted),
            "wanted {wanted}\ngot {}",
            answer.message()
        );
    }
}
