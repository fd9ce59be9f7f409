//! JSON that does not fit a kind, and JSON that fits although the types alone would reject it.

use controlplane_api::find;

use crate::table;

fn error(group: &str, plural: &str, json: &str) -> String {
    match find(group, "v1", plural).unwrap().decode_reporting(json.as_bytes()) {
        Ok(_) => "fits".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn misfits_are_told_in_upstreams_words() {
    let cases = r#"
        {"spec":{"replicas":"3"}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":1.5}} | json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":1e3}} | json: cannot unmarshal number 1e3 into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":2147483648}} | json: cannot unmarshal number 2147483648 into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":99999999999999999999}} | json: cannot unmarshal number 99999999999999999999 into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"paused":"yes"}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.paused of type bool
        {"spec":5} | json: cannot unmarshal number into Go struct field Deployment.spec of type v1.DeploymentSpec
        {"spec":[]} | json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec
        {"spec":{"selector":"a=b"}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.selector of type v1.LabelSelector
        {"metadata":{"name":5}} | json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string
        {"metadata":{"labels":{"a":1}}} | json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string
        {"metadata":{"labels":["a"]}} | json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string
        {"metadata":{"uid":{}}} | json: cannot unmarshal object into Go struct field ObjectMeta.metadata.uid of type types.UID
        {"metadata":{"creationTimestamp":7}} | json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string
        {"metadata":{"creationTimestamp":"noon"}} | parsing time "noon" as "2006-01-02T15:04:05Z07:00": cannot parse "noon" as "2006"
        {"metadata":{"creationTimestamp":"2023-01-02 03:04:05Z"}} | parsing time "2023-01-02 03:04:05Z" as "2006-01-02T15:04:05Z07:00": cannot parse " 03:04:05Z" as "T"
        {"metadata":{"creationTimestamp":"2023-13-02T03:04:05Z"}} | parsing time "2023-13-02T03:04:05Z": month out of range
        {"metadata":{"creationTimestamp":"2023-02-30T03:04:05Z"}} | parsing time "2023-02-30T03:04:05Z": day out of range
        {"metadata":{"creationTimestamp":"2023-02-03T03:04:05"}} | parsing time "2023-02-03T03:04:05" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00"
        {"metadata":{"creationTimestamp":"2023-02-03T03:04:05.5+02:00x"}} | parsing time "2023-02-03T03:04:05.5+02:00x": extra text: "x"
        {"metadata":{"creationTimestamp":"2023-02-03T03:04:05.5+02:00"}} | fits
        {"spec":{"template":{"spec":{"containers":{}}}}} | json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container
        {"spec":{"template":{"spec":{"containers":[{"name":"a"},{"image":true}]}}}} | json: cannot unmarshal bool into Go struct field Container.spec.template.spec.containers.image of type string
        {"spec":{"template":{"spec":{"containers":["a"]}}}} | json: cannot unmarshal string into Go struct field PodSpec.spec.template.spec.containers of type v1.Container
        {"spec":{"template":{"spec":{"containers":[{"imagePullPolicy":true}]}}}} | json: cannot unmarshal bool into Go struct field Container.spec.template.spec.containers.imagePullPolicy of type v1.PullPolicy
        {"spec":{"template":{"spec":{"containers":[{"env":[{"value":8080}]}]}}}} | json: cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string
        {"spec":{"template":{"spec":{"containers":[{"args":[8080]}]}}}} | json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.args of type string
        {"spec":{"template":{"spec":{"containers":[{"resources":{"limits":"1"}}]}}}} | json: cannot unmarshal string into Go struct field ResourceRequirements.spec.template.spec.containers.resources.limits of type v1.ResourceList
        {"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"a"}}}]}}}} | quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
        {"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1kk"}}}]}}}} | unable to parse quantity's suffix
        {"spec":{"template":{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":true}}}]}}}} | json: cannot unmarshal bool into Go struct field HTTPGetAction.spec.template.spec.containers.livenessProbe.httpGet.port of type int32
        {"spec":{"template":{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":1.5}}}]}}}} | json: cannot unmarshal number 1.5 into Go struct field HTTPGetAction.spec.template.spec.containers.livenessProbe.httpGet.port of type int32
        {"spec":{"template":{"spec":{"volumes":[{"configMap":{"defaultMode":"0644"}}]}}}} | json: cannot unmarshal string into Go struct field ConfigMapVolumeSource.spec.template.spec.volumes.configMap.defaultMode of type int32
        {"spec":{"replicas":"3","template":{"metadata":{"name":5}}}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":"3","template":{"spec":{"overhead":{"cpu":true}}}}} | quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
        {"spec": | unexpected end of JSON input"#;
    for case in table(cases) {
        assert_eq!(error("apps", "deployments", case[0]), case[1], "{}", case[0]);
    }
    let deep = format!(r#"{{"spec":{}"#, r#"{"a":"#.repeat(100_000));
    assert_eq!(error("apps", "deployments", &deep), "json: exceeded max depth");
}

#[test]
fn base64_is_read_as_go_reads_it() {
    for (text, expected) in [
        ("YWJj", "fits"),
        (r"YW\nJj\r\n", "fits"),
        ("", "fits"),
        ("a$bc", "illegal base64 data at input byte 1"),
        ("YWJ", "illegal base64 data at input byte 0"),
        ("YWJjZ", "illegal base64 data at input byte 4"),
        ("=", "illegal base64 data at input byte 0"),
        ("YW=", "illegal base64 data at input byte 3"),
        ("YW=x", "illegal base64 data at input byte 2"),
        ("YWI=x", "illegal base64 data at input byte 4"),
    ] {
        let json = format!(r#"{{"data":{{"a":"{text}"}}}}"#);
        assert_eq!(error("", "secrets", &json), expected, "{text}");
    }
    assert_eq!(
        error("", "secrets", r#"{"data":{"a":5}}"#),
        "json: cannot unmarshal number into Go struct field Secret.data of type []uint8"
    );
    let (secret, _) = find("", "v1", "secrets")
        .unwrap()
        .decode_reporting(br#"{"data":{"a":"YW\nJj\n"}}"#)
        .unwrap();
    assert!(String::from_utf8(secret.to_json()).unwrap().contains(r#""a":"YWJj""#));
}

/// Same as Go, which trims blanks before it parses and does not resolve JSON's escapes there.
#[test]
fn quantities_may_have_blanks_around_them() {
    let limit =
        |amount: &str| format!(r#"{{"spec":{{"containers":[{{"resources":{{"limits":{{"cpu":"{amount}"}}}}}}]}}}}"#);
    let row = find("", "v1", "pods").unwrap();
    for (amount, shown) in [
        (" 1", "1"),
        ("0.5 ", "500m"),
        ("\u{a0}64Mi \u{2003}", "64Mi"),
        ("1e-9", "1e-3"),
        ("1e-2", "10e-3"),
        ("1n", "1m"),
        (" 1.1e-3", "2e-3"),
    ] {
        let (mut pod, _) = row.decode_reporting(limit(amount).as_bytes()).unwrap();
        row.set_defaults(pod.as_mut());
        let json: serde_json::Value = serde_json::from_slice(&pod.to_json()).unwrap();
        assert_eq!(
            json["spec"]["containers"][0]["resources"]["limits"]["cpu"], shown,
            "{amount:?}"
        );
    }
    for amount in [r"1\t", "1 0", " "] {
        let form = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        assert_eq!(error("", "pods", &limit(amount)), form, "{amount:?}");
    }
}

#[test]
fn times_of_leases_have_microseconds() {
    let renewed = |time: &str| {
        error(
            "coordination.k8s.io",
            "leases",
            &format!(r#"{{"spec":{{"renewTime":{time}}}}}"#),
        )
    };
    assert_eq!(renewed(r#""2023-02-03T03:04:05.000001Z""#), "fits");
    assert_eq!(
        renewed(r#""2023-02-03T03:04:05Z""#),
        r#"parsing time "2023-02-03T03:04:05Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#
    );
    assert_eq!(
        renewed("[]"),
        "json: cannot unmarshal array into Go struct field LeaseSpec.spec.renewTime of type string"
    );
}

#[test]
fn nulls_stand_for_go_zero_values() {
    let json = br#"{"metadata":{"labels":{"a":null}},"spec":{"containers":[null,{"args":[null]}]}}"#;
    let (pod, _) = find("", "v1", "pods").unwrap().decode_reporting(json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&pod.to_json()).unwrap();
    assert_eq!(json["metadata"]["labels"]["a"], "");
    assert_eq!(json["spec"]["containers"][0]["name"], "");
    assert_eq!(json["spec"]["containers"][1]["args"][0], "");
}

/// Go clients send null for an unset time, even if it is mandatory.
#[test]
fn times_that_must_be_there_may_be_left_out() {
    let none = "0001-01-01T00:00:00Z";
    for condition in [r#"{"type":"a"}"#, r#"{"type":"a","lastTransitionTime":null}"#] {
        let json = format!(r#"{{"status":{{"conditions":[{condition}]}}}}"#);
        let service = find("", "v1", "services").unwrap().decode(json.as_bytes()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&service.to_json()).unwrap();
        assert_eq!(json["status"]["conditions"][0]["lastTransitionTime"], none);
    }
    let json = br#"{"status":{"disruptedPods":{"a":null}}}"#;
    let budget = find("policy", "v1", "poddisruptionbudgets")
        .unwrap()
        .decode(json)
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&budget.to_json()).unwrap();
    assert_eq!(json["status"]["disruptedPods"]["a"], none);
}

#[test]
fn nulls_numbers_and_unknown_fields_are_borne() {
    let row = find("", "v1", "pods").unwrap();
    let json = br#"{"kind":"Pod","metadata":{"creationTimestamp":null,"labels":null},"bogus":1,"spec":{"containers":[{"name":"a","imag":"b","resources":{"limits":{"cpu":1,"memory":"1Gi"}}}],"volumes":null},"status":{}}"#;
    let (object, mut unknown) = row.decode_reporting(json).unwrap();
    unknown.sort();
    assert_eq!(unknown, ["bogus", "spec.containers[0].imag"]);
    assert!(
        String::from_utf8(object.to_json())
            .unwrap()
            .contains(r#""limits":{"cpu":"1","memory":"1Gi"}"#)
    );
    assert!(error("", "pods", r#"{"kind":"Node"}"#).contains("Node"));
}
