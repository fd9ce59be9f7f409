//! `MutatingAdmissionPolicies` and their bindings.

use serde_json::{Value, json};

use crate::definitions::{TABS, started, tab};
use crate::support::webhook::{MUTATING, Webhook, configure};
use crate::support::{Answer, Api, config_map, deployment, entry, managers};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn applied(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patched(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// Policy for creations and updates of the tests' objects, with further members of its spec.
fn policy(name: &str, mutations: &[Value], more: &Value) -> Value {
    let mut spec = json!({
        "matchConstraints": {"resourceRules": [{
            "operations": ["CREATE", "UPDATE"], "apiGroups": ["", "apps", "example.com"], "apiVersions": ["*"],
            "resources": ["configmaps", "deployments", "tabs"],
        }]},
        "reinvocationPolicy": "Never", "mutations": mutations,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn bind(api: &Api, policy: &Value, params: &Value) {
    let answer = api.post(POLICIES, policy).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let name = &policy["metadata"]["name"];
    let mut spec = json!({"policyName": name});
    spec.as_object_mut()
        .unwrap()
        .extend(params.as_object().unwrap().clone());
    let answer = api
        .post(BINDINGS, &json!({"metadata": {"name": name}, "spec": spec}))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
}

/// A server on which a policy of these mutations is bound.
async fn changed_by(mutations: &[Value], more: &Value) -> Api {
    let api = Api::start().await;
    bind(&api, &policy("p", mutations, more), &json!({})).await;
    api
}

fn refused(answer: &Answer, code: u16, reason: &str, wanted: &str) {
    assert_eq!(
        (
            answer.code.as_u16(),
            answer.json()["reason"].as_str(),
            answer.message().as_str()
        ),
        (code, Some(reason), wanted),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn configurations_are_merged_as_server_side_apply_does_and_nobody_owns_them() {
    let expression = "Object{
        metadata: Object.metadata{labels: {'replicas': string(object.spec.replicas)}},
        spec: Object.spec{
            replicas: object.spec.replicas + 1,
            template: Object.spec.template{spec: Object.spec.template.spec{
                containers: [Object.spec.template.spec.containers{name: 'side', image: 'side:1'}],
            }},
        },
    }";
    let again = "Object{spec: Object.spec{replicas: object.spec.replicas * 2}}";
    let api = changed_by(&[applied(expression), applied(again)], &json!({})).await;
    let answer = api
        .post(&format!("{DEPLOYMENTS}?fieldManager=me"), &deployment("d"))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let made = answer.json();
    assert_eq!(made["metadata"]["labels"], json!({"replicas": "3"}));
    assert_eq!(made["spec"]["replicas"], 8);
    let containers = made["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let brief: Vec<_> = containers.iter().map(|own| (&own["name"], &own["image"])).collect();
    assert_eq!(
        brief,
        [
            (&json!("nginx"), &json!("nginx:1.14.2")),
            (&json!("side"), &json!("side:1"))
        ]
    );
    assert_eq!(containers[1]["terminationMessagePath"], "/dev/termination-log");
    let change = json!({"spec": {"replicas": 1}});
    let path = format!("{DEPLOYMENTS}/d?fieldManager=other");
    let changed = api.patch(&path, "merge-patch+json", &change).await.json();
    assert_eq!(changed["spec"]["replicas"], 4);
    assert_eq!(managers(&changed), ["me Update", "other Update"]);
    let fields = &entry(&changed, "other")["fieldsV1"];
    assert_eq!(fields["f:metadata"], Value::Null, "{fields}");
}

#[tokio::test]
async fn configurations_that_do_not_fit_are_refused() {
    let start = "policy 'p' with binding 'p' denied request: ";
    for (expression, wanted) in [
        (
            "Object{spec: Object.spec{none: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.none: field not declared in schema",
        ),
        (
            "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}",
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
        ),
        (
            "Object{spec: Object.spec{template: Object.spec.wrong{}}}",
            "type mismatch: unexpected type name \"Object.spec.wrong\", expected \"Object.spec.template\", which matches \
             field name path from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicas: object.spec.none}}",
            "expression 'Object{spec: Object.spec{replicas: object.spec.none}}' resulted in error: no such key: none",
        ),
    ] {
        let api = changed_by(&[applied(expression)], &json!({})).await;
        let answer = api.post(DEPLOYMENTS, &deployment("d")).await;
        refused(&answer, 403, "Invalid", &format!("{start}{wanted}"));
        let details = json!({"name": "d", "group": "apps", "kind": "deployments", "causes": [
            {"message": format!("{start}{wanted}")},
        ]});
        assert_eq!(answer.json()["details"], details);
        let api = changed_by(&[applied(expression)], &json!({"failurePolicy": "Ignore"})).await;
        assert_eq!(api.post(DEPLOYMENTS, &deployment("d")).await.code, 201);
    }
}

#[tokio::test]
async fn patches_are_applied_unless_their_test_fails() {
    let api = changed_by(
        &[
            patched(
                "[JSONPatch{op: 'add', path: '/metadata/labels', value: {}},
                  JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.com/b'), value: 'c'}]",
            ),
            patched("[JSONPatch{op: 'test', path: '/data/a', value: 'other'}, JSONPatch{op: 'remove', path: '/data'}]"),
            patched("has(object.data.b) ? [JSONPatch{op: 'move', from: '/data/b', path: '/data/c'}] : []"),
        ],
        &json!({}),
    )
    .await;
    let mut map = config_map("m");
    map["data"]["b"] = json!("2");
    let made = api.post(MAPS, &map).await.json();
    assert_eq!(made["metadata"]["labels"], json!({"a.com/b": "c"}));
    assert_eq!(made["data"], json!({"a": "1", "c": "2"}));
    for (expression, code, reason, wanted) in [
        (
            "[JSONPatch{op: 'remove', path: '/data/none'}]",
            403,
            "Invalid",
            "policy 'p' with binding 'p' denied request: JSON Patch: error in remove for path: \
             '/data/none': Unable to remove nonexistent key: none: missing value",
        ),
        (
            "[JSONPatch{op: 'add', path: '/none', value: 1}]",
            500,
            "InternalError",
            "Internal error occurred: strict decoding error: unknown field \"none\"",
        ),
    ] {
        let api = changed_by(&[patched(expression)], &json!({})).await;
        let answer = api.post(MAPS, &config_map("m")).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message().as_str()),
            (code, wanted),
            "{}",
            answer.text()
        );
        assert_eq!(answer.json()["reason"], reason);
    }
}

#[tokio::test]
async fn policies_see_again_what_others_changed_after_them_if_they_want_to() {
    // In the order of their names: `a` sees the label of `b` and of the webhook only when it is asked again.
    let seen = "Object{metadata: Object.metadata{annotations: {'seen': has(object.metadata.labels) ?
        object.metadata.labels.map(key, key).join(',') : ''}}}";
    for (reinvocation, by_policy, wanted) in [
        ("Never", true, ""),
        ("IfNeeded", true, "label"),
        ("IfNeeded", false, "hook"),
    ] {
        let api = Api::start().await;
        let more = json!({"reinvocationPolicy": reinvocation});
        bind(&api, &policy("a", &[applied(seen)], &more), &json!({})).await;
        if by_policy {
            let label = "Object{metadata: Object.metadata{labels: {'label': 'x'}}}";
            bind(&api, &policy("b", &[applied(label)], &json!({})), &json!({})).await;
        }
        let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"hook": "x"}}]);
        let hook = Webhook::patching(patch).await;
        if !by_policy {
            configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
        }
        let made = api.post(MAPS, &config_map("m")).await;
        assert_eq!(made.code, 201, "{}", made.text());
        assert_eq!(
            made.json()["metadata"]["annotations"],
            json!({"seen": wanted}),
            "{reinvocation}"
        );
        let requests = hook.requests();
        if let Some(request) = requests.first() {
            assert_eq!(
                request["object"]["metadata"]["annotations"],
                json!({"seen": ""}),
                "policies come first"
            );
        }
    }
}

#[tokio::test]
async fn conditions_variables_and_params_decide_about_mutations() {
    let api = Api::start().await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "others", "expression": "object.metadata.name.startsWith('m')"}],
        "variables": [{"name": "value", "expression": "params.data.a + object.data.a"}],
    });
    let mutation = applied("Object{data: {'a': variables.value}}");
    let selected = json!({"selector": {"matchLabels": {"of": "p"}}, "parameterNotFoundAction": "Deny"});
    for (name, value) in [("x", "x"), ("y", "y")] {
        let mut params = config_map(name);
        params["data"]["a"] = json!(value);
        params["metadata"]["labels"] = json!({"of": "p"});
        assert_eq!(api.post(MAPS, &params).await.code, 201);
    }
    bind(&api, &policy("p", &[mutation], &spec), &json!({"paramRef": selected})).await;
    let made = api.post(MAPS, &config_map("m")).await;
    assert_eq!(made.json()["data"], json!({"a": "yx1"}), "{}", made.text());
    let made = api.post(MAPS, &config_map("n")).await;
    assert_eq!(made.json()["data"], json!({"a": "1"}), "{}", made.text());
    for name in ["x", "y"] {
        assert_eq!(api.delete(&format!("{MAPS}/{name}"), "").await.code, 200);
    }
    refused(
        &api.post(MAPS, &config_map("m2")).await,
        403,
        "Forbidden",
        "policy 'p' with binding 'p' denied request: failed to configure binding: no params found for policy binding with \
         `Deny` parameterNotFoundAction",
    );
}

#[tokio::test]
async fn custom_resources_are_changed_by_their_schemas() {
    let api = started().await;
    let expression = "Object{spec: Object.spec{
        size: 9, ports: [Object.spec.ports{name: 'b', number: 2}, Object.spec.ports{name: 'c', number: 3}]}}";
    bind(&api, &policy("p", &[applied(expression)], &json!({})), &json!({})).await;
    let spec = json!({"size": 1, "ports": [{"name": "a", "number": 1}, {"name": "b", "number": 1}]});
    let made = api.post(TABS, &tab("t", &spec)).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let wanted = json!([{"name": "a", "number": 1}, {"name": "b", "number": 2}, {"name": "c", "number": 3}]);
    assert_eq!(made.json()["spec"], json!({"size": 9, "ports": wanted}));
}

#[tokio::test]
async fn mutating_policies_are_checked_when_they_are_written() {
    let api = Api::start().await;
    let delete = json!({"matchConstraints": {"resourceRules": [
        {"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]},
    ]}});
    let fine = applied("Object{}");
    for (mutations, more, wanted) in [
        (
            vec![],
            json!({}),
            "spec.mutations: Required value: mutations must contain at least one item",
        ),
        (
            vec![fine.clone()],
            delete,
            "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
             \"CONNECT\", \"CREATE\", \"UPDATE\"",
        ),
        (
            vec![fine],
            json!({"reinvocationPolicy": null}),
            "spec.reinvocationPolicy: Required value",
        ),
        (
            vec![json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}})],
            json!({}),
            "[spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch, \
             spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when \
             patchType is JSONPatch]",
        ),
        (
            vec![applied("object")],
            json!({}),
            "spec.mutations[0].applyConfiguration.expression: Invalid value: \"object\": must evaluate to Object but got dyn",
        ),
        (
            vec![patched("[]")],
            json!({}),
            "spec.mutations[0].jsonPatch.expression: Invalid value: \"[]\": must evaluate to list(JSONPatch) but got list(dyn)",
        ),
        (
            vec![patched("[JSONPatch{operation: 'add'}]")],
            json!({}),
            "spec.mutations[0].jsonPatch.expression: Invalid value: \"[JSONPatch{operation: 'add'}]\": compilation failed: \
             ERROR: <input>:1:21: undefined field 'operation'\n | [JSONPatch{operation: 'add'}]\n | ....................^",
        ),
    ] {
        let answer = api.post(POLICIES, &policy("p", &mutations, &more)).await;
        let message = format!("MutatingAdmissionPolicy.admissionregistration.k8s.io \"p\" is invalid: {wanted}");
        refused(&answer, 422, "Invalid", &message);
    }
}
