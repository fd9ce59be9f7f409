//! Duplicate and unknown fields, named as upstream names them.

use controlplane_api::strict;
use k8s_openapi::api::apps::v1::Deployment;

#[test]
fn duplicates_have_upstreams_paths() {
    let json = br#"{"spec": {"replicas": 1, "replicas": 2, "replicas": 3, "template": {"spec": {"containers": [
        {"name": "a"}, {"name": "b", "ports": [], "ports": [{"x": 1, "x": 1}]}]}}}, "spec": {}, "a.b": {"c": 1, "c": 2}}"#;
    assert_eq!(
        strict::duplicates(json).unwrap(),
        [
            "spec.replicas",
            "spec.template.spec.containers[1].ports",
            "spec.template.spec.containers[1].ports[0].x",
            "spec",
            "a.b.c",
        ]
    );
    assert_eq!(
        strict::duplicates(br#"{"a": [1, -2, 1.5, "x", null, true], "b": {"a": 1}}"#).unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(
        strict::duplicate_field("spec.replicas"),
        r#"duplicate field "spec.replicas""#
    );
}

#[test]
fn unknown_fields_have_upstreams_paths() {
    let json = br#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"foo": 1},
        "spec": {"replcas": 1, "selector": {}, "template": {"spec": {"containers": [{"name": "a"}, {"name": "b", "imagePullPolice": {}}]}}}}"#;
    let mut unknown = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let decoded: Result<Deployment, _> =
        serde_ignored::deserialize(&mut deserializer, |path| unknown.push(strict::ignored_path(&path)));
    assert!(decoded.is_ok());
    assert_eq!(
        unknown,
        [
            "metadata.foo",
            "spec.replcas",
            "spec.template.spec.containers[1].imagePullPolice"
        ]
    );
    assert_eq!(strict::unknown_field("spec.replcas"), r#"unknown field "spec.replcas""#);
}

#[test]
fn attack_24_nesting_and_findings_are_bounded() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(strict::duplicates(deep.as_bytes()).is_err());
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    assert!(strict::duplicates(deep.as_bytes()).is_err());
    let many = format!("[{}]", vec![r#"{"a":1,"a":2}"#; 1000].join(","));
    assert_eq!(strict::duplicates(many.as_bytes()).unwrap().len(), strict::MAX_FINDINGS);
    assert!(strict::duplicates(b"{} x").is_err());
    assert!(strict::duplicates(b"{\"a\"").is_err());
}

#[test]
fn complaints_stand_in_the_order_of_the_document() {
    let json =
        br#"{"spec": {"new": 1, "twice": 1, "twice": 2, "paused": true, "list": [{"own": 1}], "paused": false}}"#;
    let unknown = ["spec.new", "spec.twice", "spec.twice", "spec.list[0].own"].map(str::to_owned);
    let duplicates = ["spec.twice", "spec.paused"].map(str::to_owned);
    let expected = [
        r#"unknown field "spec.new""#,
        r#"unknown field "spec.twice""#,
        r#"unknown field "spec.list[0].own""#,
        r#"duplicate field "spec.paused""#,
    ];
    assert_eq!(strict::complaints(json, &unknown, &duplicates), expected);
    // Duplicates that the YAML parser drops.
    let lost = ["spec.lost".to_owned()];
    assert_eq!(
        strict::complaints(b"{}", &[], &lost),
        [r#"duplicate field "spec.lost""#]
    );
}
