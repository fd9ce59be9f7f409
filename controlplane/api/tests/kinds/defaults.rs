//! Objects as they are stored, after defaults and with what creators may not set left out.

use controlplane_api::{KINDS, find};
use expect_test::expect_file;
use serde_json::Value;

use crate::every::fixture;

/// The whole stored form of every fixture, so that a change of a default is seen in review.
#[test]
fn every_fixture_as_it_is_stored() {
    let mut whole = String::new();
    for row in KINDS {
        let mut object = row.decode(&fixture(row)).unwrap();
        row.set_defaults(object.as_mut());
        row.prepare_create(object.as_mut());
        let value: Value = serde_json::from_slice(&object.to_json()).unwrap();
        whole.push_str("---\n");
        whole.push_str(&serde_yaml::to_string(&value).unwrap());
    }
    expect_file!["fixtures/stored.txt"].assert_eq(&whole);
}

#[test]
fn pull_policies_follow_the_tag() {
    let policy = controlplane_api::pod::defaults::pull_policy;
    for image in ["nginx", "nginx:latest", "localhost:5000/nginx", "a/b/c:latest"] {
        assert_eq!(policy(image), "Always", "{image}");
    }
    for image in [
        "nginx:1",
        "nginx@sha256:00",
        "localhost:5000/nginx:1",
        "nginx:1@sha256:00",
    ] {
        assert_eq!(policy(image), "IfNotPresent", "{image}");
    }
}

#[test]
fn a_pod_is_deleted_at_once_when_nothing_runs() {
    let row = find("", "v1", "pods").unwrap();
    let grace = |spec: &str, requested| {
        let pod = row.decode(format!(r#"{{"spec":{spec}}}"#).as_bytes()).unwrap();
        row.grace(pod.as_ref(), requested)
    };
    assert_eq!(grace(r#"{"terminationGracePeriodSeconds":30}"#, None), 0);
    assert_eq!(
        grace(r#"{"nodeName":"n","terminationGracePeriodSeconds":30}"#, None),
        30
    );
    assert_eq!(
        grace(r#"{"nodeName":"n","terminationGracePeriodSeconds":30}"#, Some(0)),
        0
    );
    assert_eq!(grace(r#"{"nodeName":"n","terminationGracePeriodSeconds":-5}"#, None), 1);
}
