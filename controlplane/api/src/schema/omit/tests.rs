use super::empty;
use crate::schema::Schema;

fn check(message: &str, json: &str, expected: &str) {
    let schema = Schema::named(message).unwrap();
    let left = empty(schema, json.as_bytes());
    assert_eq!(std::str::from_utf8(&left), Ok(expected));
    let _: serde_json::Value = serde_json::from_slice(&left).unwrap();
}

#[test]
fn empty_lists_maps_and_values_go() {
    check(
        "core.v1.Pod",
        r#"{"metadata":{"name":"a","labels":{},"finalizers":[]},"spec":{"volumes":[],"containers":[{"args":[ ],"env":[{"name":"x","value":""}],"name":"c","tty":false,"workingDir":""}],"nodeName":"","hostNetwork":false}}"#,
        r#"{"metadata":{"name":"a"},"spec":{"containers":[{"env":[{"name":"x"}],"name":"c"}]}}"#,
    );
    check("core.v1.ConfigMap", r#"{"data":{},"binaryData":{}}"#, "{}");
    check(
        "apps.v1.Deployment",
        r#"{"spec":{"minReadySeconds":0,"replicas":0,"paused":false}}"#,
        r#"{"spec":{"replicas":0}}"#,
    );
}

/// Lists that are always written are removed too: they are written as null.
#[test]
fn lists_that_are_always_written_go() {
    check("rbac.v1.ClusterRole", r#"{"rules":[]}"#, "{}");
    check("discovery.v1.EndpointSlice", r#"{"endpoints":[],"ports":[]}"#, "{}");
    check("core.v1.Pod", r#"{"spec":{"containers":[]}}"#, r#"{"spec":{}}"#);
}

#[test]
fn structs_pointers_and_items_stay() {
    for (message, json) in [
        ("core.v1.Pod", r#"{"spec":{"affinity":{},"securityContext":{}}}"#),
        (
            "core.v1.Pod",
            r#"{"spec":{"volumes":[{"name":"a","emptyDir":{}}],"automountServiceAccountToken":false}}"#,
        ),
        (
            "core.v1.Pod",
            r#"{"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"","args":[""]}]}}"#,
        ),
        (
            "networking.v1.NetworkPolicy",
            r#"{"spec":{"podSelector":{},"ingress":[{}]}}"#,
        ),
        (
            "core.v1.ConfigMap",
            r#"{"immutable":false,"data":{"a":"","b":"[]","c\"":"{}"}}"#,
        ),
        ("core.v1.PersistentVolumeClaim", r#"{"spec":{"storageClassName":""}}"#),
        (
            "core.v1.Pod",
            r#"{"foo":[],"spec":{"bar":{},"volumes":{},"tolerations":"","containers":[{"ports":[{"containerPort":0}]}]}}"#,
        ),
        (
            "core.v1.Pod",
            r#"{"metadata":{"managedFields":[{"fieldsV1":{"f:spec":{"f:volumes":{},".":{}}}}]}}"#,
        ),
        ("core.v1.Pod", "[]"),
        ("core.v1.Pod", "null"),
    ] {
        check(message, json, json);
    }
}

#[test]
fn commas_and_blanks_are_kept_in_order() {
    check(
        "core.v1.Pod",
        "{ \"spec\" : { \"volumes\" : [ ] , \"nodeName\" : \"n\" , \"tolerations\" : [\n] } }",
        "{ \"spec\" : {  \"nodeName\" : \"n\"  } }",
    );
    check(
        "core.v1.ServiceSpec",
        r#"{"ports":[],"clusterIP":"","type":"ClusterIP","selector":{},"externalIPs":[],"healthCheckNodePort":0}"#,
        r#"{"type":"ClusterIP"}"#,
    );
    check(
        "core.v1.ServiceSpec",
        r#"{"ports":[{"port":10,"nodePort":0}],"selector":{"a":"b"},"externalIPs":[]}"#,
        r#"{"ports":[{"port":10}],"selector":{"a":"b"}}"#,
    );
}
