//! Stored form of objects, after defaults and without fields that a create must not set.

use controlplane_api::schema::{Schema, Shape};
use controlplane_api::{KINDS, Object, find};
use expect_test::expect_file;
use serde_json::{Value, json};

use crate::every::fixture;

/// Prints the whole stored form of every fixture, so that reviews show a changed default.
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

/// A pod gets 1 in place of a negative value; a template keeps it.
#[test]
fn a_negative_grace_is_a_second() {
    let stored = |kind: (&str, &str), object: Value, place: &str| {
        let row = find(kind.0, "v1", kind.1).unwrap();
        let mut object = row.decode(object.to_string().as_bytes()).unwrap();
        row.set_defaults(object.as_mut());
        let value: Value = serde_json::from_slice(&object.to_json()).unwrap();
        value.pointer(place).cloned()
    };
    let spec = json!({"terminationGracePeriodSeconds": -1});
    let place = "/spec/terminationGracePeriodSeconds";
    assert_eq!(stored(("", "pods"), json!({"spec": spec}), place), Some(json!(1)));
    let template = json!({"spec": {"template": {"spec": spec}}});
    let place = "/spec/template/spec/terminationGracePeriodSeconds";
    assert_eq!(stored(("apps", "deployments"), template, place), Some(json!(-1)));
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

/// Paths of missing structs that upstream writes even if they are empty.
fn missing(schema: Schema, value: &Value, path: &str, found: &mut Vec<String>) {
    for field in schema.fields() {
        if field.shape == Shape::Inline {
            missing(field.message().unwrap(), value, path, found);
            continue;
        }
        let Some(message) = field.message() else { continue };
        let path = format!("{path}.{}", field.json);
        match (field.shape, value.get(field.json)) {
            (Shape::One, None) if field.always_written => found.push(path),
            (Shape::One, Some(inner)) => missing(message, inner, &path, found),
            (Shape::List, Some(Value::Array(items))) => {
                for item in items {
                    missing(message, item, &path, found);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn structs_are_there_even_when_they_are_empty() {
    let template = json!({"spec": {"containers": [{"name": "a", "image": "b"}], "volumes": [
        {"name": "c", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}});
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
    for (group, plural, spec) in [
        ("", "nodes", json!({})),
        ("", "pods", template["spec"].clone()),
        ("", "replicationcontrollers", json!({"template": template})),
        ("", "limitranges", json!(null)),
        ("apps", "daemonsets", json!({"template": template})),
        ("apps", "deployments", json!({"template": template})),
        ("apps", "replicasets", json!({"template": template})),
        (
            "apps",
            "statefulsets",
            json!({"template": template, "volumeClaimTemplates": [claim]}),
        ),
        (
            "batch",
            "cronjobs",
            json!({"jobTemplate": {"spec": {"template": template}}}),
        ),
        ("batch", "jobs", json!({"template": template})),
        ("coordination.k8s.io", "leases", json!(null)),
        ("networking.k8s.io", "networkpolicies", json!(null)),
        ("policy", "poddisruptionbudgets", json!(null)),
        ("resource.k8s.io", "resourceclaims", json!({})),
        ("resource.k8s.io", "resourceclaimtemplates", json!({})),
    ] {
        let row = find(group, "v1", plural).unwrap();
        let sent = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let mut object = row.decode(sent.as_bytes()).unwrap();
        row.set_defaults(object.as_mut());
        row.prepare_create(object.as_mut());
        let schema = Schema::of_kind(&row.api_version(), row.kind).unwrap();
        let mut found = Vec::new();
        let value = serde_json::from_slice(&object.to_json()).unwrap();
        missing(schema, &value, "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "{plural}: {value}");
    }
}

#[test]
fn daemon_sets_count_their_templates() {
    const COUNT: &str = "deprecated.daemonset.template.generation";
    let row = find("apps", "v1", "daemonsets").unwrap();
    let count = |object: &dyn Object| object.metadata().annotations.as_ref().unwrap()[COUNT].clone();
    let made = |sent: Value| {
        let mut object = row.decode(sent.to_string().as_bytes()).unwrap();
        row.set_defaults(object.as_mut());
        object
    };
    let with_image = |image: &str| {
        made(json!({"metadata": {"name": "a", "annotations": {COUNT: "9"}},
            "spec": {"template": {"spec": {"containers": [{"name": "a", "image": image}]}}}}))
    };
    let mut fresh = made(json!({"metadata": {"name": "a"}}));
    assert_eq!(count(fresh.as_ref()), "0", "before managers are written down");
    row.prepare_create(fresh.as_mut());
    assert_eq!(count(fresh.as_ref()), "1");
    let mut old = with_image("x");
    row.prepare_create(old.as_mut());
    assert_eq!(count(old.as_ref()), "9");
    // The value in an update is ignored.
    let mut same = with_image("x");
    same.metadata_mut().annotations = None;
    row.prepare_update(same.as_mut(), old.as_ref());
    assert_eq!(count(same.as_ref()), "9");
    let mut newer = with_image("y");
    row.prepare_update(newer.as_mut(), old.as_ref());
    assert_eq!(count(newer.as_ref()), "10");
    row.prepare_status(same.as_mut(), newer.as_ref());
    assert_eq!(count(same.as_ref()), "10");
}

#[test]
fn volumes_of_drivers_are_filled_in() {
    let sources = json!({
        "iscsi": {"targetPortal": "a", "iqn": "iqn.2001-04.com.example:a", "lun": 0},
        "rbd": {"monitors": ["a"], "image": "i"},
        "azureDisk": {"diskName": "d", "diskURI": "u"},
        "scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "s"}},
    });
    let expected = [
        ("/iscsi/iscsiInterface", json!("default")),
        ("/rbd/pool", json!("rbd")),
        ("/rbd/user", json!("admin")),
        ("/rbd/keyring", json!("/etc/ceph/keyring")),
        ("/azureDisk/cachingMode", json!("ReadWrite")),
        ("/azureDisk/kind", json!("Shared")),
        ("/azureDisk/fsType", json!("ext4")),
        ("/azureDisk/readOnly", json!(false)),
        ("/scaleIO/storageMode", json!("ThinProvisioned")),
        ("/scaleIO/fsType", json!("xfs")),
    ];
    for (plural, spec, at) in [
        ("persistentvolumes", sources.clone(), "/spec"),
        (
            "pods",
            json!({"containers": [], "volumes": [sources]}),
            "/spec/volumes/0",
        ),
    ] {
        let row = find("", "v1", plural).unwrap();
        let sent = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let mut object = row.decode(sent.as_bytes()).unwrap();
        row.set_defaults(object.as_mut());
        let value: Value = serde_json::from_slice(&object.to_json()).unwrap();
        for (path, expected) in &expected {
            assert_eq!(value.pointer(&format!("{at}{path}")), Some(expected), "{plural} {path}");
        }
    }
}
