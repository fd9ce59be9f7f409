//! Go's JSON: order of members, `null` for unset fields, and indentation.

use controlplane_api::go_json::{encode, indent, write};
use controlplane_api::schema::Schema;
use controlplane_api::{Object, find};
use serde_json::json;

fn check(message: &str, json: &str, expected: &str) {
    let schema = Schema::named(message).unwrap();
    let written = String::from_utf8(write(schema, json.as_bytes())).unwrap();
    assert_eq!(written, expected);
    let _: serde_json::Value = serde_json::from_str(&written).unwrap();
    let again = write(schema, written.as_bytes());
    assert_eq!(again, written.as_bytes(), "a second time");
}

#[test]
fn lists_that_are_not_set_are_null() {
    check("rbac.v1.ClusterRole", "{}", r#"{"rules":null}"#);
    check(
        "rbac.v1.ClusterRole",
        r#"{"metadata":{"name":"a","labels":{"rules":"[]"}},"rules":[]}"#,
        r#"{"metadata":{"name":"a","labels":{"rules":"[]"}},"rules":null}"#,
    );
    check(
        "rbac.v1.Role",
        r#"{"rules":[{"resources":["a\"]"],"verbs":["get"]},{"verbs":[]}]}"#,
        r#"{"rules":[{"verbs":["get"],"resources":["a\"]"]},{"verbs":null}]}"#,
    );
    check(
        "discovery.v1.EndpointSlice",
        r#"{"addressType":"IPv4","endpoints":[]}"#,
        r#"{"addressType":"IPv4","endpoints":null,"ports":null}"#,
    );
}

#[test]
fn a_reference_without_a_name_is_empty() {
    check(
        "core.v1.PodSpec",
        r#"{"containers":[],"imagePullSecrets":[{"name":""},{"name":"a"}]}"#,
        r#"{"containers":null,"imagePullSecrets":[{},{"name":"a"}]}"#,
    );
    check(
        "core.v1.SecretKeySelector",
        r#"{"key":"k","name":"","optional":true}"#,
        r#"{"key":"k","optional":true}"#,
    );
    check(
        "core.v1.ConfigMap",
        r#"{"metadata":{"name":"a","resourceVersion":""}}"#,
        r#"{"metadata":{"name":"a","resourceVersion":""}}"#,
    );
}

#[test]
fn times_that_are_not_set_are_null() {
    check(
        "core.v1.Pod",
        r#"{"status":{"conditions":[{"lastTransitionTime":"2026-01-01T00:00:00Z","status":"True","type":"Ready"}]}}"#,
        r#"{"status":{"conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    );
    check(
        "core.v1.Pod",
        r#"{"status":{"containerStatuses":[{"state":{"running":{}}},{"state":{"waiting":{}}}]}}"#,
        r#"{"status":{"containerStatuses":[{"state":{"running":{"startedAt":null}}},{"state":{"waiting":{}}}]}}"#,
    );
    check(
        "core.v1.Event",
        r#"{"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":null}"#,
        r#"{"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":null,"eventTime":null}"#,
    );
}

#[test]
fn members_stand_in_the_order_of_upstreams_structs() {
    check(
        "core.v1.Pod",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"z":"1","a":"{,"},"managedFields":[],"name":"a","namespace":"b","ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u"}],"uid":"u"},"spec":{"containers":[{"image":"i","name":"c","ports":[{"containerPort":1,"name":"p"}]}],"volumes":[{"emptyDir":{},"name":"v"}]}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"u","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"z":"1","a":"{,"},"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u"}],"managedFields":[]},"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"c","image":"i","ports":[{"name":"p","containerPort":1}]}]}}"#,
    );
    // The example is upstream's Service.
    check(
        "core.v1.ServiceSpec",
        r#"{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ports":[{"nodePort":2,"port":1,"protocol":"TCP","targetPort":1}],"selector":{},"type":"NodePort"}"#,
        r#"{"ports":[{"protocol":"TCP","port":1,"targetPort":1,"nodePort":2}],"selector":{},"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"type":"NodePort"}"#,
    );
    let status =
        json!({"apiVersion": "v1", "kind": "Status", "code": 404, "message": "m", "metadata": {}, "reason": "r"});
    assert_eq!(
        String::from_utf8(encode(&status)).unwrap(),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"message":"m","reason":"r","code":404}"#
    );
}

#[test]
fn people_read_one_member_a_line() {
    for json in [
        json!({"a": {}, "b": [], "c": [{"d": "{\"[,:"}, [1, null], "\\"], "e": {"f": true}}),
        json!([]),
        json!("a"),
    ] {
        let expected = serde_json::to_string_pretty(&json).unwrap();
        let indented = indent(json.to_string().as_bytes(), 0);
        assert_eq!(String::from_utf8(indented).unwrap(), expected);
    }
    assert_eq!(indent(b"{\"a\":1}", 4), b"{\n      \"a\": 1\n    }");
}

#[test]
fn the_rest_stays() {
    for (message, json) in [
        ("core.v1.ConfigMap", r#"{"metadata":{},"data":{"eventTime":"{}"}}"#),
        (
            "core.v1.Pod",
            r#"{"spec":{"volumes":[],"containers":[{"args":[]}],"nodeSelector":{}}}"#,
        ),
        (
            "apps.v1.ControllerRevision",
            r#"{"data":{"rules":[],"status":{"conditions":[{}]}}}"#,
        ),
        ("core.v1.Pod", r#"{"rules":[],"unknown":{"a":[{}]}}"#),
    ] {
        check(message, json, json);
    }
}

#[test]
fn objects_are_written_with_their_nulls() {
    let written = |group: &str, plural: &str, object: serde_json::Value| {
        let row = find(group, "v1", plural).unwrap();
        let object: Box<dyn Object> = row.decode(object.to_string().as_bytes()).unwrap();
        let (shown, stored) = (object.to_json(), row.encode_stored(object.as_ref()));
        // The stored form can be decoded.
        row.decode_stored(&stored).unwrap();
        [shown, stored].map(|json| serde_json::from_slice::<serde_json::Value>(&json).unwrap())
    };
    let group = "rbac.authorization.k8s.io";
    for json in written(group, "roles", json!({"rules": []})) {
        assert_eq!(json["rules"], json!(null));
        assert!(json.as_object().unwrap().contains_key("rules"));
    }
    for json in written(
        "discovery.k8s.io",
        "endpointslices",
        json!({"addressType": "IPv4", "endpoints": []}),
    ) {
        assert!(json["endpoints"].is_null() && json.as_object().unwrap().contains_key("ports"));
    }
    let [shown, stored] = written("events.k8s.io", "events", json!({"regarding": {}}));
    assert!(
        shown.as_object().unwrap().contains_key("deprecatedFirstTimestamp"),
        "{shown}"
    );
    assert!(stored.as_object().unwrap().contains_key("firstTimestamp"), "{stored}");
    // Responses are never stored, and keep their empty lists.
    let answer = json!({"spec": {}, "status": {"resourceRules": [], "nonResourceRules": [], "incomplete": false}});
    for json in written("authorization.k8s.io", "selfsubjectrulesreviews", answer) {
        assert_eq!(json["status"]["resourceRules"], json!([]));
    }
}
