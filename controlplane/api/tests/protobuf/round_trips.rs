//! Round trips of every message of the table.

use controlplane_api::patch::strategic;
use controlplane_api::schema::{Alternative, Field, Form, Schema, Shape};
use controlplane_api::{KINDS, protobuf};
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{core, decoded, newer};

/// An object with every field of a message set, down to some depth.
fn full(schema: Schema, depth: usize) -> Value {
    let mut members = Map::new();
    fill(schema, depth, &mut members);
    Value::Object(members)
}

fn fill(schema: Schema, depth: usize, members: &mut Map<String, Value>) {
    for field in schema.fields() {
        if field.shape == Shape::Inline {
            fill(field.message().expect("inlined fields are messages"), depth, members);
            continue;
        }
        let Some(value) = sample(field, depth) else { continue };
        let value = match field.shape {
            Shape::One | Shape::Inline => value,
            Shape::List => json!([value]),
            Shape::Map => json!({"key": value}),
        };
        members.insert(field.json.to_owned(), value);
    }
}

fn sample(field: &Field, depth: usize) -> Option<Value> {
    Some(match field.form {
        Form::String => json!("text"),
        Form::Bool => json!(true),
        Form::Int32 => json!(-7),
        Form::Int64 => json!(i64::MIN),
        Form::Double => json!(1.5),
        Form::Bytes => json!("AP8="),
        Form::Quantity => json!("1500m"),
        Form::IntOrString => json!("25%"),
        Form::Time => json!("2023-11-14T22:13:20Z"),
        Form::MicroTime => json!("2023-11-14T22:13:20.123456Z"),
        Form::Duration => json!("1m30s"),
        Form::RawExtension | Form::FieldsV1 => json!({"f:x": {}}),
        Form::Message(_) if depth == 0 => return None,
        Form::Strings | Form::Alternative(Alternative::Strings) => json!(["a", "b"]),
        Form::Alternative(Alternative::Bool) => json!(false),
        Form::Alternative(Alternative::Schemas) => json!([{"type": "string"}, {"type": "number"}]),
        // Schemas contain schemas.
        Form::Message("apiextensions.v1.JSONSchemaProps") => full(field.message()?, depth.min(2) - 1),
        Form::Message(_) => full(field.message()?, depth - 1),
    })
}

/// Kinds of bodies that have no row.
const OTHERS: [(&str, &str); 5] = [
    ("v1", "Status"),
    ("autoscaling/v1", "Scale"),
    ("policy/v1", "Eviction"),
    ("authentication.k8s.io/v1", "TokenRequest"),
    ("authorization.k8s.io/v1", "SubjectAccessReview"),
];

/// An object of a kind with every field set.
pub(crate) fn whole(api_version: &str, kind: &str) -> Value {
    let schema = Schema::of_kind(api_version, kind).unwrap_or_else(|| panic!("{api_version} {kind}"));
    let mut object = full(schema, 9);
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object
}

#[test]
fn every_kind_survives_the_way_there_and_back() {
    let rows = KINDS.iter().map(|row| (row.api_version(), row.kind));
    let others = OTHERS.map(|(api_version, kind)| (api_version.to_owned(), kind));
    for (api_version, kind) in rows.chain(others) {
        let object = whole(&api_version, kind);
        let body = protobuf::encode(&api_version, kind, object.to_string().as_bytes()).unwrap();
        assert_eq!(protobuf::decode(&body).unwrap().json, object, "{kind}");
    }
}

#[test]
fn every_kind_keeps_every_field_in_the_store() {
    for row in KINDS {
        let object = whole(&row.api_version(), row.kind);
        let decoded = row.decode(object.to_string().as_bytes()).unwrap();
        let mut again: Value = serde_json::from_slice(&decoded.to_json()).unwrap();
        // Claims in a template have an `apiVersion` and a `kind`, which the table lacks.
        for claim in again
            .pointer_mut("/spec/volumeClaimTemplates")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            claim
                .as_object_mut()
                .unwrap()
                .retain(|name, _| name != "apiVersion" && name != "kind");
        }
        assert_eq!(again, object, "{}", row.kind);
        let stored = row.encode_stored(decoded.as_ref());
        let once = row.decode_stored(&stored).unwrap();
        let twice = row.decode_stored(&row.encode_stored(once.as_ref())).unwrap();
        assert!(row.same(twice.as_ref(), once.as_ref()), "{}", row.kind);
    }
}

#[test]
fn an_empty_patch_changes_nothing() {
    for row in KINDS {
        let object = whole(&row.api_version(), row.kind);
        let schema = Schema::of_kind(&row.api_version(), row.kind).unwrap();
        let mut patched = object.clone();
        strategic::apply(schema, &mut patched, &json!({})).unwrap();
        assert_eq!(patched, object, "{}", row.kind);
    }
}

/// Decodes our bytes with prost, and prost's bytes with our decoder.
#[test]
fn an_independent_decoder_reads_what_we_write() {
    let schema = Schema::of_kind("v1", "Pod").unwrap();
    let mut object = full(schema, 9);
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("Pod");
    newer::remove(schema, &mut object);
    let ours = protobuf::encode("v1", "Pod", object.to_string().as_bytes()).unwrap();
    let unknown = Unknown::decode(&ours[4..]).unwrap();
    let pod = core::Pod::decode(&unknown.raw.unwrap()[..]).unwrap();
    assert_eq!(
        pod.spec.as_ref().unwrap().containers[0].ports[0].container_port,
        Some(-7)
    );
    assert_eq!(decoded("v1", "Pod", &pod), object);
}
