//! Fixtures of all kinds through protobuf, and the table compared with the types.

use std::collections::BTreeSet;

use controlplane_api::patch::strategic;
use controlplane_api::schema::Schema;
use controlplane_api::{KINDS, Registration, go_json, openapi, protobuf, yaml};
use serde_json::Value;

/// The fixture as the server would store it.
fn fixture(row: &Registration) -> Value {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/tests/kinds/fixtures";
    let kind = row.kind.to_lowercase();
    let names = [
        format!("{folder}/{kind}.{}.{}.yaml", row.group, row.version),
        format!("{folder}/{kind}.{}.yaml", row.group),
        format!("{folder}/{kind}.yaml"),
    ];
    let text = names
        .iter()
        .find_map(|name| std::fs::read(name).ok())
        .unwrap_or_else(|| panic!("no fixture of {kind}"));
    let yaml = yaml::to_json(&text).unwrap();
    assert!(yaml.duplicates.is_empty());
    let mut object = row.decode(yaml.value.to_string().as_bytes()).unwrap();
    row.set_defaults(object.as_mut());
    serde_json::from_slice(&object.to_json()).unwrap()
}

#[test]
fn every_fixture_survives_protobuf() {
    for row in KINDS {
        let expected = fixture(row);
        let body = protobuf::encode(&row.api_version(), row.kind, expected.to_string().as_bytes()).unwrap();
        let decoded = protobuf::decode(&body).unwrap();
        let object = row.decode(decoded.json.to_string().as_bytes()).unwrap();
        let found: Value = serde_json::from_slice(&object.to_json()).unwrap();
        assert_eq!(found, expected, "{}", row.kind);
    }
}

#[test]
fn a_fixture_patched_with_itself_is_the_same() {
    for row in KINDS {
        let expected = fixture(row);
        let schema = Schema::of_kind(&row.api_version(), row.kind).unwrap();
        let mut patched = expected.clone();
        strategic::apply(schema, &mut patched, &expected).unwrap();
        // Nulls delete, and are written again with the object.
        let written = go_json::write(schema, &serde_json::to_vec(&patched).unwrap());
        let patched: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(patched, expected, "{}", row.kind);
    }
}

#[test]
fn the_table_has_every_field_of_the_types() {
    let mut missing = BTreeSet::new();
    for path in openapi::group_versions(KINDS) {
        let document = openapi::v3_document(KINDS, &path).unwrap();
        for (name, definition) in document["components"]["schemas"].as_object().unwrap() {
            let short = name
                .replace("io.k8s.api.", "")
                .replace("io.k8s.apiextensions-apiserver.pkg.apis.", "")
                .replace("io.k8s.kube-aggregator.pkg.apis.", "")
                .replace("io.k8s.apimachinery.pkg.apis.", "");
            let Some(properties) = definition["properties"].as_object() else {
                continue;
            };
            let Some(schema) = Schema::named(&short) else {
                missing.insert(short);
                continue;
            };
            let is_there = |json: &str| json == "apiVersion" || json == "kind" || schema.field(json).is_some();
            missing.extend(
                properties
                    .keys()
                    .filter(|json| !is_there(json))
                    .map(|json| format!("{short}.{json}")),
            );
        }
    }
    assert_eq!(missing, BTreeSet::new());
}
