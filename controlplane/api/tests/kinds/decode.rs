//! Bytes that do not fit a kind, and bytes that fit although the types alone would refuse them.

use controlplane_api::find;

use crate::table;

fn error(group: &str, plural: &str, json: &str) -> String {
    match find(group, "v1", plural).unwrap().decode(json.as_bytes()) {
        Ok(_) => "fits".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn misfits_are_told_in_upstreams_words() {
    let cases = r#"
        {"spec":{"replicas":"3"}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"replicas":1.5}} | json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32
        {"spec":{"paused":"yes"}} | json: cannot unmarshal string into Go struct field DeploymentSpec.spec.paused of type bool
        {"metadata":{"name":5}} | json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string
        {"metadata":{"labels":{"a":1}}} | json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels.a of type string
        {"spec":{"template":{"spec":{"containers":[{"name":"a"},{"image":true}]}}}} | json: cannot unmarshal bool into Go struct field Container.spec.template.spec.containers.image of type string
        {"spec": | unexpected end of JSON input"#;
    for case in table(cases) {
        assert_eq!(error("apps", "deployments", case[0]), case[1], "{}", case[0]);
    }
    let deep = format!(r#"{{"spec":{}"#, r#"{"a":"#.repeat(100_000));
    assert_eq!(error("apps", "deployments", &deep), "json: exceeded max depth");
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
