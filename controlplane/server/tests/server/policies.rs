//! `ValidatingAdmissionPolicies` and their bindings.

use std::sync::{Arc, PoisonError};

use controlplane_server::Options;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{Answer, Api, Kept, config_map, deployment};

pub(crate) const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
pub(crate) const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A policy about config maps with further members of its spec.
pub(crate) fn policy(spec: &Value) -> Value {
    let mut whole = json!({
        "matchConstraints": {"resourceRules": [
            {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]},
        ]},
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": "p"}, "spec": whole})
}

async fn bind(api: &Api, spec: &Value) {
    let mut whole = json!({"policyName": "p", "validationActions": ["Deny"]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let answer = api
        .post(BINDINGS, &json!({"metadata": {"name": "b"}, "spec": whole}))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
}

/// A server on which a policy is bound.
pub(crate) async fn guarded(spec: &Value, binding: &Value) -> Api {
    let api = Api::start().await;
    let answer = api.post(POLICIES, &policy(spec)).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    bind(&api, binding).await;
    api
}

pub(crate) fn map(name: &str, data: &Value) -> Value {
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
async fn a_bound_policy_refuses_what_its_validations_do_not_allow() {
    let says = "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";
    for (validation, code, reason, message) in [
        (json!({}), 422, "Invalid", "failed expression: object.data.a == 'x'"),
        (json!({"message": " no "}), 422, "Invalid", "no"),
        (
            json!({"reason": "Forbidden"}),
            403,
            "Forbidden",
            "failed expression: object.data.a == 'x'",
        ),
        (
            json!({"reason": "Unauthorized", "message": "who?"}),
            401,
            "Unauthorized",
            "who?",
        ),
        (
            json!({"reason": "RequestEntityTooLarge", "message": "big"}),
            413,
            "RequestEntityTooLarge",
            "big",
        ),
        (
            json!({"messageExpression": "'got ' + object.data.a + ' in ' + namespaceObject.metadata.name"}),
            422,
            "Invalid",
            "got y in default",
        ),
        (
            json!({"messageExpression": "object.data.none + ''", "message": "else"}),
            422,
            "Invalid",
            "else",
        ),
    ] {
        let mut whole = json!({"expression": "object.data.a == 'x'"});
        whole
            .as_object_mut()
            .unwrap()
            .extend(validation.as_object().unwrap().clone());
        let api = guarded(&json!({"validations": [whole]}), &json!({})).await;
        let answer = api.post(MAPS, &map("m", &json!({"a": "y"}))).await;
        let message = format!("{says}{message}");
        let cause = message.split_once(": ").unwrap().1;
        refused(&answer, code, &message);
        let status = answer.json();
        assert_eq!(status["reason"], reason);
        assert_eq!(
            status["details"],
            json!({"name": "m", "kind": "configmaps", "causes": [{"message": cause}]})
        );
        assert_eq!(api.post(MAPS, &map("m", &json!({"a": "x"}))).await.code, 201);
        let change = json!({"data": {"a": "y"}});
        let answer = api.patch(&format!("{MAPS}/m"), "merge-patch+json", &change).await;
        refused(&answer, code, &message);
        assert_eq!(api.delete(&format!("{MAPS}/m"), "").await.code, 200);
    }
}

#[tokio::test]
async fn policies_count_from_the_answer_on_and_until_they_are_gone() {
    let api = Api::start().await;
    let never = json!({"validations": [{"expression": "false", "message": "never"}]});
    assert_eq!(api.post(POLICIES, &policy(&never)).await.code, 201);
    assert_eq!(api.post(MAPS, &config_map("unbound")).await.code, 201);
    bind(&api, &json!({})).await;
    assert_eq!(api.post(MAPS, &config_map("m")).await.code, 422);
    let change =
        json!({"spec": {"validations": [{"expression": "object.metadata.name != 'm'", "message": "now this"}]}});
    let answer = api.patch(&format!("{POLICIES}/p"), "merge-patch+json", &change).await;
    assert_eq!(
        (answer.code.as_u16(), answer.json()["metadata"]["generation"].clone()),
        (200, json!(2))
    );
    assert_eq!(api.post(MAPS, &config_map("n")).await.code, 201);
    assert!(api.post(MAPS, &config_map("m")).await.message().ends_with("now this"));
    assert_eq!(api.delete(&format!("{BINDINGS}/b"), "").await.code, 200);
    assert_eq!(api.post(MAPS, &config_map("m")).await.code, 201);
}

#[tokio::test]
async fn a_policy_is_for_what_it_and_its_binding_match() {
    let never = json!([{"expression": "false", "message": "never"}]);
    let rule = |more: Value| {
        let mut rule = json!({
            "operations": ["*"], "apiGroups": ["", "apps"], "apiVersions": ["*"], "resources": ["configmaps", "deployments"],
        });
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule
    };
    for (constraints, binding, free) in [
        (json!({"resourceRules": [rule(json!({}))]}), json!({}), false),
        (
            json!({"resourceRules": [rule(json!({"operations": ["DELETE"]}))]}),
            json!({}),
            true,
        ),
        (
            json!({"resourceRules": [rule(json!({"resourceNames": ["m"]}))]}),
            json!({}),
            false,
        ),
        (
            json!({"resourceRules": [rule(json!({"resourceNames": ["n"]}))]}),
            json!({}),
            true,
        ),
        (
            json!({
                "resourceRules": [rule(json!({}))],
                "excludeResourceRules": [rule(json!({"resources": ["configmaps"]}))],
            }),
            json!({}),
            true,
        ),
        (
            json!({"resourceRules": [rule(json!({}))], "objectSelector": {"matchLabels": {"a": "b"}}}),
            json!({}),
            true,
        ),
        (
            json!({"resourceRules": [rule(json!({}))]}),
            json!({"matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}}),
            true,
        ),
        (
            json!({"resourceRules": [rule(json!({}))]}),
            json!({"matchResources": {"resourceRules": [rule(json!({"resources": ["deployments"]}))]}}),
            true,
        ),
    ] {
        let api = guarded(
            &json!({"matchConstraints": constraints, "validations": never}),
            &binding,
        )
        .await;
        let answer = api.post(MAPS, &config_map("m")).await;
        assert_eq!(answer.code == 201, free, "{constraints} {binding}: {}", answer.text());
    }
}

#[tokio::test]
async fn variables_are_evaluated_when_they_are_read() {
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]},
        ]},
        "variables": [
            {"name": "broken", "expression": "object.spec.none"},
            {"name": "replicas", "expression": "object.spec.replicas"},
            {"name": "odd", "expression": "variables.replicas % 2 == 1"},
        ],
        "validations": [
            {"expression": "variables.replicas > 1 || variables.broken == 1"},
            {"expression": "has(variables.odd) && variables.odd", "messageExpression": "'even: ' + string(variables.replicas)"},
        ],
    });
    let api = guarded(&spec, &json!({})).await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let with = |name: &str, replicas: i32| {
        let mut deployment = deployment(name);
        deployment["spec"]["replicas"] = json!(replicas);
        deployment
    };
    assert_eq!(api.post(path, &with("three", 3)).await.code, 201);
    let start = "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";
    refused(&api.post(path, &with("d", 2)).await, 422, &format!("{start}even: 2"));
    refused(
        &api.post(path, &with("d", 1)).await,
        422,
        &format!(
            "{start}expression 'variables.replicas > 1 || variables.broken == 1' resulted in error: composited variable \
             \"broken\" fails to evaluate: no such key: none"
        ),
    );
}

#[tokio::test]
async fn long_chains_of_variables_end_nothing() {
    let first = json!({"name": "v0", "expression": "object.metadata.name"});
    let others = (1..2000).map(|index| {
        let expression = format!("variables.v{} + ''", index - 1);
        json!({"name": format!("v{index}"), "expression": expression})
    });
    let variables: Vec<Value> = std::iter::once(first).chain(others).collect();
    let validations = json!([{"expression": "variables.v1999 == 'm'", "message": "not m"}]);
    let api = guarded(&json!({"variables": variables, "validations": validations}), &json!({})).await;
    assert_eq!(api.post(MAPS, &config_map("m")).await.code, 201);
    let answer = api.post(MAPS, &config_map("n")).await;
    assert!(answer.message().ends_with("denied request: not m"), "{}", answer.text());
}

#[tokio::test]
async fn params_are_found_by_name_and_by_selector() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "others", "expression": "object.metadata.name != params.metadata.name"}],
        "validations": [{"expression": "object.data.a == params.data.a", "messageExpression": "'want ' + params.data.a"}],
    });
    let named = json!({"paramRef": {"name": "wanted", "parameterNotFoundAction": "Deny"}});
    let selected = json!({"paramRef": {"selector": {"matchLabels": {"of": "p"}}, "parameterNotFoundAction": "Deny"}});
    let lenient = json!({"paramRef": {"name": "wanted", "parameterNotFoundAction": "Allow"}});
    for (binding, missing) in [(named, false), (selected, false), (lenient, true)] {
        let api = guarded(&spec, &binding).await;
        let answer = api.post(MAPS, &map("m", &json!({"a": "y"}))).await;
        assert_eq!(answer.code == 201, missing, "{}", answer.text());
        if !missing {
            refused(
                &answer,
                422,
                "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed to \
                 configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
            );
        }
        assert_eq!(api.delete(&format!("{BINDINGS}/b"), "").await.code, 200);
        let mut params = map("wanted", &json!({"a": "x"}));
        params["metadata"]["labels"] = json!({"of": "p"});
        assert_eq!(api.post(MAPS, &params).await.code, 201);
        bind(&api, &binding).await;
        let answer = api.post(MAPS, &map("n", &json!({"a": "y"}))).await;
        assert!(
            answer.message().ends_with("denied request: want x"),
            "{}",
            answer.text()
        );
        assert_eq!(api.post(MAPS, &map("n", &json!({"a": "x"}))).await.code, 201);
    }
}

#[tokio::test]
async fn the_failure_policy_decides_where_an_expression_fails() {
    let fails = json!([{"expression": "object.data.none == 'x'"}]);
    let strict = guarded(&json!({"validations": fails}), &json!({})).await;
    refused(
        &strict.post(MAPS, &map("m", &json!({"a": "b"}))).await,
        422,
        "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: expression \
         'object.data.none == 'x'' resulted in error: no such key: none",
    );
    let open = guarded(&json!({"failurePolicy": "Ignore", "validations": fails}), &json!({})).await;
    assert_eq!(open.post(MAPS, &map("m", &json!({"a": "b"}))).await.code, 201);
    let unknown = json!({
        "paramKind": {"apiVersion": "example.com/v1", "kind": "None"}, "validations": [{"expression": "true"}],
    });
    let binding = json!({"paramRef": {"name": "x", "parameterNotFoundAction": "Deny"}});
    refused(
        &guarded(&unknown, &binding).await.post(MAPS, &config_map("m")).await,
        422,
        "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to \
         find resource referenced by paramKind: 'example.com/v1, Kind=None'",
    );
}

#[tokio::test]
async fn policies_ask_the_authorizer_and_do_not_see_themselves() {
    let spec = json!({
        "matchConstraints": {"resourceRules": [
            {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]},
        ]},
        "validations": [
            {"expression": "authorizer.group('').resource('secrets').check('get').allowed()"},
            {"expression": "request.userInfo.username == 'nobody'", "message": "nobody does"},
        ],
    });
    let api = guarded(&spec, &json!({})).await;
    assert!(
        api.post(MAPS, &config_map("m"))
            .await
            .message()
            .ends_with("nobody does")
    );
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let answer = api
        .post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review)
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    assert_eq!(api.delete(&format!("{POLICIES}/p"), "").await.code, 200);
    assert_eq!(api.post(MAPS, &config_map("m")).await.code, 201);
}

#[tokio::test]
async fn failures_are_warned_of_and_told_to_the_audit_log() {
    let kept = Arc::new(Kept::default());
    let audit = Arc::clone(&kept);
    let api = Api::start_with(|options| Options {
        audit: Some(audit),
        ..options
    })
    .await;
    let spec = json!({
        "validations": [{"expression": "true"}, {"expression": "object.data.a == 'x'", "message": "no <x>"}],
        "auditAnnotations": [
            {"key": "value", "valueExpression": "'a is ' + object.data.a"},
            {"key": "nothing", "valueExpression": "null"},
        ],
    });
    assert_eq!(api.post(POLICIES, &policy(&spec)).await.code, 201);
    bind(&api, &json!({"validationActions": ["Warn", "Audit"]})).await;
    let answer = api.post(MAPS, &map("m", &json!({"a": "y"}))).await;
    assert_eq!(answer.code, 201);
    assert_eq!(
        answer.warnings(),
        ["299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no <x>\""]
    );
    let records = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut noted: Vec<String> = records
        .iter()
        .flat_map(|record| &record.annotations)
        .filter(|(key, _)| key.starts_with("p/") || key.starts_with("validation.policy"))
        .map(|(key, text)| format!("{key}: {text}"))
        .collect();
    noted.sort();
    assert_eq!(
        noted,
        [
            "p/value: a is y",
            "validation.policy.admission.k8s.io/validation_failure: [{\"message\":\"no \\u003cx\\u003e\",\"policy\":\"p\",\"binding\":\"b\",\
             \"expressionIndex\":1,\"validationActions\":[\"Warn\",\"Audit\"]}]",
        ]
    );
}

#[tokio::test]
async fn costly_validations_are_given_up() {
    let nested = "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != ''))))";
    let api = guarded(&json!({"validations": [{"expression": nested}]}), &json!({})).await;
    let many: serde_json::Map<String, Value> = (0..60).map(|index| (format!("k{index}"), json!("v"))).collect();
    refused(
        &api.post(MAPS, &map("m", &Value::Object(many))).await,
        422,
        &format!(
            "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: expression \
             '{nested}' resulted in error: operation cancelled: actual cost limit exceeded"
        ),
    );
}

#[tokio::test]
async fn expressions_that_do_not_compile_are_refused_with_the_policy() {
    let api = Api::start().await;
    for (spec, wanted) in [
        (
            json!({"validations": [{"expression": "object.metadata.name"}]}),
            "spec.validations[0].expression: Invalid value: \"object.metadata.name\": must evaluate to bool but got dyn",
        ),
        (
            json!({"validations": [{"expression": "variables.x"}]}),
            "spec.validations[0].expression: Invalid value: \"variables.x\": compilation failed: ERROR: <input>:1:10: \
             undefined field 'x'\n | variables.x\n | .........^",
        ),
        (
            json!({"validations": [{"expression": "params == null"}]}),
            "spec.validations[0].expression: Invalid value: \"params == null\": compilation failed: ERROR: <input>:1:1: \
             undeclared reference to 'params' (in container '')\n | params == null\n | ^",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
            "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
        ),
        (
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
            "spec.auditAnnotations[0].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but \
             got int",
        ),
        (
            json!({"variables": [{"name": "if", "expression": "1 +"}], "validations": [{"expression": "true"}]}),
            "spec.variables[0].name: Invalid value: \"if\": must be a valid CEL identifier",
        ),
        (
            json!({}),
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
        ),
    ] {
        let answer = api.post(POLICIES, &policy(&spec)).await;
        assert_eq!(answer.code, 422, "{}", answer.text());
        assert!(
            answer.message().contains(wanted),
            "wanted {wanted}\ngot {}",
            answer.message()
        );
    }
}

#[tokio::test]
async fn params_are_lent_to_those_who_may_read_them() {
    let api = Api::start().await;
    let rules = json!([{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "policies"}, "rules": rules});
    assert_eq!(
        api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role)
            .await
            .code,
        201
    );
    let binding = json!({
        "metadata": {"name": "policies"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "policies"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(api.post(path, &binding).await.code, 201);
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "Secret"}, "validations": [{"expression": "params.data.a == 'x'"}],
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(POLICIES)
        .header("content-type", "application/json")
        .body(policy(&spec).to_string().into())
        .unwrap();
    let user = controlplane_server::authn::identity::User::new("jane", ["system:authenticated"]);
    let answer = crate::support::collect(api.send_as(user, request).await).await;
    assert_eq!(answer.code, 422);
    let wanted = "must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert!(answer.message().ends_with(wanted), "{}", answer.text());
}
