//! Rules in CEL that definitions have.

use serde_json::{Value, json};

use crate::definitions::{DEFINITIONS, TABS, define, tab, tabs};
use crate::support::{Answer, Api};

/// The definition of tabs with rules at some places of its schema.
fn ruled(places: &[(&str, Value)]) -> Value {
    let mut definition = tabs();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for (place, rules) in places {
        schema.pointer_mut(place).unwrap()["x-kubernetes-validations"] = rules.clone();
    }
    definition
}

async fn with_rules(places: &[(&str, Value)]) -> Api {
    let api = Api::start().await;
    define(&api, &ruled(places)).await;
    api
}

fn refused(answer: &Answer, wanted: &str) {
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (422, wanted),
        "{}",
        answer.text()
    );
}

/// Changes an object by PUT and returns the answer.
async fn put(api: &Api, path: &str, change: impl FnOnce(&mut Value)) -> Answer {
    let mut object = api.get(path).await.json();
    change(&mut object);
    api.put(path, &object).await
}

const SPEC: &str = "/properties/spec";
const SIZE: &str = "/properties/spec/properties/size";

#[tokio::test]
async fn an_object_that_breaks_a_rule_is_refused_in_upstreams_words() {
    let api = with_rules(&[
        ("", json!([{"rule": "self.metadata.name.startsWith('t')"}])),
        (
            SPEC,
            json!([
                {"rule": "self.size < 10", "messageExpression": "'%d is too large'.format([self.size])"},
                {"rule": "!has(self.color) || self.color != 'red'", "message": "no red", "reason": "FieldValueForbidden",
                 "fieldPath": ".color"},
                {"rule": "!has(self.ports) || self.ports[0].number > 0"},
            ]),
        ),
        (SIZE, json!([{"rule": "self != 7", "message": "seven is taken"}])),
    ])
    .await;
    let made = api.post(TABS, &tab("t", &json!({"color": "blue"}))).await;
    assert_eq!(made.code, 201, "{}", made.text());
    refused(
        &api.post(TABS, &tab("other", &json!({"size": 12, "color": "red"})))
            .await,
        "Tab.example.com \"other\" is invalid: [<nil>: Invalid value: failed rule: self.metadata.name.startsWith('t'), \
         spec: Invalid value: 12 is too large, spec.color: Forbidden: no red]",
    );
    refused(
        &api.post(TABS, &tab("t7", &json!({"size": 7}))).await,
        "Tab.example.com \"t7\" is invalid: spec.size: Invalid value: 7: seven is taken",
    );
    refused(
        &api.post(TABS, &tab("t8", &json!({"ports": []}))).await,
        "Tab.example.com \"t8\" is invalid: spec: Invalid value: \"object\": index out of bounds: 0 evaluating rule: \
         !has(self.ports) || self.ports[0].number > 0",
    );
    let blocked = api.post(TABS, &tab("t9", &json!({"size": "x"}))).await;
    assert!(
        blocked.message().ends_with(
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation]"
        ),
        "{}",
        blocked.text()
    );
}

#[tokio::test]
async fn rules_are_asked_on_every_way_to_write() {
    let api = with_rules(&[
        (SPEC, json!([{"rule": "self.size <= 5", "message": "at most five"}])),
        (
            "/properties/status",
            json!([{"rule": "!has(self.size) || self.size <= 5", "message": "status of at most five"}]),
        ),
    ])
    .await;
    api.post(TABS, &tab("t", &json!({"size": 1}))).await;
    let path = format!("{TABS}/t");
    let wanted = "Tab.example.com \"t\" is invalid: spec: Invalid value: at most five";
    refused(&put(&api, &path, |tab| tab["spec"]["size"] = json!(6)).await, wanted);
    let large = json!({"spec": {"size": 6}});
    refused(&api.patch(&path, "merge-patch+json", &large).await, wanted);
    let step = json!([{"op": "replace", "path": "/spec/size", "value": 6}]);
    refused(&api.patch(&path, "json-patch+json", &step).await, wanted);
    let applied = tab("t", &json!({"size": 6}));
    refused(&api.apply(&path, "fieldManager=m&force=true", &applied).await, wanted);
    let scaled = api
        .patch(
            &format!("{path}/scale"),
            "merge-patch+json",
            &json!({"spec": {"replicas": 6}}),
        )
        .await;
    refused(&scaled, wanted);
    let status = json!({"status": {"size": 6}});
    refused(
        &api.patch(&format!("{path}/status"), "merge-patch+json", &status).await,
        "Tab.example.com \"t\" is invalid: status: Invalid value: status of at most five",
    );
    assert_eq!(api.get(&path).await.json()["spec"]["size"], 1);
}

#[tokio::test]
async fn rules_compare_with_the_old_object() {
    let ports = "/properties/spec/properties/ports/items";
    let api = with_rules(&[
        (SIZE, json!([{"rule": "self >= oldSelf", "message": "never smaller"}])),
        (
            "/properties/spec/properties/color",
            json!([{"rule": "oldSelf.hasValue() || self == 'white'", "optionalOldSelf": true}]),
        ),
        (
            ports,
            json!([{"rule": "!has(self.number) || self.number == oldSelf.number"}]),
        ),
    ])
    .await;
    let colored = api.post(TABS, &tab("c", &json!({"color": "black"}))).await;
    refused(
        &colored,
        "Tab.example.com \"c\" is invalid: spec.color: Invalid value: \"black\": failed rule: oldSelf.hasValue() || self == \
         'white'",
    );
    let spec = json!({"size": 3, "color": "white", "ports": [{"name": "a", "number": 1}, {"name": "b", "number": 2}]});
    assert_eq!(api.post(TABS, &tab("t", &spec)).await.code, 201);
    let path = format!("{TABS}/t");
    let swapped =
        json!({"size": 4, "color": "black", "ports": [{"name": "b", "number": 2}, {"name": "a", "number": 1}]});
    let answer = put(&api, &path, |tab| tab["spec"] = swapped).await;
    assert_eq!(
        answer.code,
        200,
        "by their keys the ports are as they were: {}",
        answer.text()
    );
    let smaller = json!({"size": 3, "ports": [{"name": "a", "number": 9}]});
    refused(
        &put(&api, &path, |tab| tab["spec"] = smaller).await,
        "Tab.example.com \"t\" is invalid: [spec.ports[0]: Invalid value: failed rule: !has(self.number) || self.number == \
         oldSelf.number, spec.size: Invalid value: 3: never smaller]",
    );
}

#[tokio::test]
async fn what_broke_a_rule_before_and_stays_is_tolerated_with_a_warning() {
    let api = Api::start().await;
    define(&api, &tabs()).await;
    api.post(TABS, &tab("t", &json!({"size": 9, "color": "red"}))).await;
    let rules = ruled(&[
        (SIZE, json!([{"rule": "self < 5", "message": "below five"}])),
        ("/properties/spec/properties/color", json!([{"rule": "self != 'red'"}])),
    ]);
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let answer = put(&api, &path, |definition| definition["spec"] = rules["spec"].clone()).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    let kept = api
        .patch(
            &format!("{TABS}/t"),
            "merge-patch+json",
            &json!({"spec": {"color": "blue"}}),
        )
        .await;
    assert_eq!(kept.code, 200, "{}", kept.text());
    assert_eq!(kept.warnings(), ["299 - \"spec.size: Invalid value: 9: below five\""]);
    let changed = api
        .patch(&format!("{TABS}/t"), "merge-patch+json", &json!({"spec": {"size": 8}}))
        .await;
    refused(
        &changed,
        "Tab.example.com \"t\" is invalid: spec.size: Invalid value: 8: below five",
    );
}

#[tokio::test]
async fn rules_that_do_not_compile_or_cost_too_much_are_refused_with_the_definition() {
    let api = Api::start().await;
    let at = "spec.validation.openAPIV3Schema.properties[spec]";
    let of = |rule: &str| {
        format!(
            "{{\"Rule\":\"{rule}\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\
             \"OptionalOldSelf\":null}}"
        )
    };
    let rule = |text: &str| json!([{"rule": text}]);
    let cases = [
        (
            SPEC,
            rule("self.sise > 5"),
            format!(
                "{at}.x-kubernetes-validations[0].rule: Invalid value: {}: compilation failed: ERROR: <input>:1:5: undefined \
                 field 'sise'\n | self.sise > 5\n | ....^",
                of("self.sise \\u003e 5")
            ),
        ),
        (
            SPEC,
            rule("self.size"),
            format!(
                "{at}.x-kubernetes-validations[0].rule: Invalid value: {}: cel expression must evaluate to a bool",
                of("self.size")
            ),
        ),
        (
            SPEC,
            rule("self.ports.all(a, self.ports.all(b, a.name == b.name))"),
            format!(
                "{at}.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than \
                 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and \
                 strings are declared)"
            ),
        ),
        (
            SPEC,
            json!([{"rule": "self.size > 0", "optionalOldSelf": true}]),
            format!(
                "{at}.x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used \
                 in rule"
            ),
        ),
    ];
    for (place, rules, wanted) in cases {
        let answer = api.post(DEFINITIONS, &ruled(&[(place, rules)])).await;
        let message = answer.message();
        assert_eq!(answer.code, 422, "{}", answer.text());
        assert!(message.contains(&wanted), "wanted {wanted}\ngot {message}");
    }
    let mut atomic = ruled(&[(
        "/properties/spec/properties/ports/items",
        rule("self.name == oldSelf.name"),
    )]);
    let ports = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/ports";
    let ports = atomic.pointer_mut(ports).unwrap().as_object_mut().unwrap();
    ports.remove("x-kubernetes-list-type");
    ports.remove("x-kubernetes-list-map-keys");
    let answer = api.post(DEFINITIONS, &atomic).await;
    let wanted = format!(
        "{at}.properties[ports].items.x-kubernetes-validations[0].rule: Invalid value: \"self.name == oldSelf.name\": oldSelf \
         cannot be used on the uncorrelatable portion of the schema within {at}.properties[ports]"
    );
    assert!(answer.message().contains(&wanted), "{}", answer.message());
}

#[tokio::test]
async fn a_default_meets_its_rules() {
    let api = Api::start().await;
    let answer = api
        .post(
            DEFINITIONS,
            &ruled(&[(SIZE, json!([{"rule": "self > 5", "message": "above five"}]))]),
        )
        .await;
    assert!(
        answer
            .message()
            .contains("properties[size].default: Invalid value: 3: above five"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_real_definition_is_taken_and_asked() {
    let api = Api::start().await;
    let gateways: Value = serde_yaml::from_str(include_str!("gateway-api/gateways.yaml")).unwrap();
    define(&api, &gateways).await;
    let path = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways";
    let gateway = |listeners: Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g"},
            "spec": {"gatewayClassName": "c", "listeners": listeners},
        })
    };
    let http = |name: &str| json!({"name": name, "port": 80, "protocol": "HTTP"});
    let twice = api.post(path, &gateway(json!([http("a"), http("a")]))).await;
    assert!(
        twice.message().contains(
            "spec.listeners: Invalid value: Combination of port, protocol and hostname must be unique for each listener"
        ),
        "{}",
        twice.text()
    );
    let mut secured = http("a");
    secured["tls"] = json!({"mode": "Terminate", "options": {"a": "b"}});
    refused(
        &api.post(path, &gateway(json!([secured]))).await,
        "Gateway.gateway.networking.k8s.io \"g\" is invalid: spec.listeners: Invalid value: tls must not be specified for \
         protocols ['HTTP', 'TCP', 'UDP']",
    );
    let made = api.post(path, &gateway(json!([http("a")]))).await;
    assert_eq!(made.code, 201, "{}", made.text());
}

#[tokio::test]
async fn reserved_words_name_fields() {
    let mut definition = ruled(&[(SPEC, json!([{"rule": "self.namespace != self.__for__"}]))]);
    let properties = format!("/spec/versions/0/schema/openAPIV3Schema{SPEC}/properties");
    let properties = definition.pointer_mut(&properties).unwrap();
    for name in ["namespace", "for"] {
        properties[name] = json!({"type": "string", "maxLength": 9});
    }
    let api = Api::start().await;
    define(&api, &definition).await;
    let made = api.post(TABS, &tab("a", &json!({"namespace": "a", "for": "b"}))).await;
    assert_eq!(made.code, 201, "{}", made.text());
    refused(
        &api.post(TABS, &tab("b", &json!({"namespace": "b", "for": "b"}))).await,
        "Tab.example.com \"b\" is invalid: spec: Invalid value: failed rule: self.namespace != self.__for__",
    );
}
