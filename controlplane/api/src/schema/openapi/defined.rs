//! OpenAPI documents of custom kinds
//! (`staging/src/k8s.io/apiextensions-apiserver/pkg/controller/openapi/{builder/builder.go,v2/conversion.go}`).

use serde_json::{Map, Value, json};

use super::components::{self, reference};
use super::{paths, title};
use crate::registration::Registration;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const EMBEDDED_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// Media types that custom kinds do not support.
const FOREIGN: [&str; 2] = ["protobuf", "strategic-merge-patch"];

/// Kinds of one group version, with the schemas of their definitions.
pub struct Defined<'d> {
    /// The rows of the version.
    pub rows: Vec<&'d Registration>,
    /// Schema of each row; none for one without.
    pub schema: &'d dyn Fn(&Registration) -> Option<Value>,
}

impl Defined<'_> {
    /// The document of OpenAPI v3.
    pub fn v3_document(&self) -> Value {
        json!({
            "openapi": "3.0.0",
            "info": title(),
            "paths": self.paths(),
            "components": {
                "schemas": self.schemas(published),
                "securitySchemes": {"BearerToken": components::bearer_token()},
            },
        })
    }

    /// The same in gnostic's protobuf.
    pub fn v3_protobuf(&self) -> Vec<u8> {
        super::gnostic_v3::document(&self.v3_document())
    }

    pub(super) fn paths(&self) -> Map<String, Value> {
        let mut all = paths::of(&self.rows);
        all.retain(|path, _| !path.contains("/watch/"));
        all.values_mut().for_each(without_foreign);
        all
    }

    /// True if a definition is that of a row, and so already in the v2 form.
    pub(super) fn defines(&self, name: &str) -> bool {
        self.rows.iter().any(|row| components::name_of(row) == name)
    }

    /// Definitions in the v2 form, except for references to those that all group versions have.
    pub(super) fn v2_schemas(&self) -> Map<String, Value> {
        self.schemas(published_in_v2)
    }

    fn schemas(&self, publish: impl Fn(Option<Value>) -> Value) -> Map<String, Value> {
        let mut all = components::of(&[], &self.rows);
        for row in &self.rows {
            let mut schema = publish((self.schema)(row));
            if let Some(members) = schema.as_object_mut() {
                let own = super::group_version_kind(row.group, row.version, row.kind);
                members.insert("x-kubernetes-group-version-kind".to_owned(), json!([own]));
            }
            let name = components::name_of(row);
            let list = all.get_mut(&format!("{name}List"));
            let fields = row.field_labels();
            let fields: Vec<Value> = fields.into_iter().map(|path| json!({"fieldPath": path})).collect();
            let marked = [Some(&mut schema), list].into_iter().flatten();
            for members in marked.filter_map(Value::as_object_mut).filter(|_| !fields.is_empty()) {
                members.insert("x-kubernetes-selectable-fields".to_owned(), json!(fields));
            }
            all.insert(name, schema);
        }
        all
    }
}

/// Removes the media types of built-in kinds from a path's requests and responses.
fn without_foreign(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let (true, Value::Object(types)) = (name == "content", &mut *member) {
                    types.retain(|name, _| !FOREIGN.iter().any(|foreign| name.contains(foreign)));
                }
                without_foreign(member);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_foreign),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_true(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool) == Some(true)
}

fn published(schema: Option<Value>) -> Value {
    let Some(mut schema) = schema else {
        return json!({"type": "object"});
    };
    each_schema(&mut schema, &mut |own| embed(own, false));
    insert(&mut schema, [API_VERSION, KIND], false);
    schema
}

/// Schema for v2. kubectl takes fields outside a schema for unknown, so a schema that preserves
/// unknown fields is published as a plain object.
fn published_in_v2(schema: Option<Value>) -> Value {
    let Some(mut schema) = schema.filter(|schema| !is_true(schema, PRESERVE)) else {
        return json!({"type": "object"});
    };
    each_schema(&mut schema, &mut |own| {
        in_v2(own);
        embed(own, true);
    });
    insert(&mut schema, [API_VERSION, KIND], true);
    schema
}

/// Adds the fields that every object has.
fn insert(schema: &mut Value, [api_version, kind]: [&str; 2], in_v2: bool) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    let properties = members.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        let text = |description: &str| json!({"description": description, "type": "string"});
        properties.insert("apiVersion".to_owned(), text(api_version));
        properties.insert("kind".to_owned(), text(kind));
        let metadata = if in_v2 {
            json!({"description": METADATA, "$ref": format!("#/definitions/{META}")})
        } else {
            json!({"description": METADATA, "allOf": [reference(META)]})
        };
        properties.insert("metadata".to_owned(), metadata);
    }
}

/// `addEmbeddedProperties` of the builder.
fn embed(schema: &mut Value, in_v2: bool) {
    if !is_true(schema, "x-kubernetes-embedded-resource") || in_v2 && is_true(schema, PRESERVE) {
        return;
    }
    insert(schema, [EMBEDDED_API_VERSION, EMBEDDED_KIND], in_v2);
    if let Some(members) = schema.as_object_mut() {
        let required = members.entry("required").or_insert_with(|| json!([]));
        for name in ["kind", "apiVersion"] {
            if let Some(required) = required.as_array_mut().filter(|all| !all.iter().any(|own| own == name)) {
                required.push(name.into());
            }
        }
    }
}

/// `ToStructuralOpenAPIV2` of the conversion, for one schema.
fn in_v2(schema: &mut Value) {
    let is_nullable = |schema: &Value| is_true(schema, "nullable");
    let (nullable, preserves) = (is_nullable(schema), is_true(schema, PRESERVE));
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    for junctor in ["allOf", "oneOf", "anyOf", "not"] {
        members.remove(junctor);
    }
    let of_children: Vec<String> = members
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, child)| is_nullable(child))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(Value::Array(required)) = members.get_mut("required") {
        required.retain(|name| !of_children.iter().any(|child| name == child));
        if required.is_empty() {
            members.remove("required");
        }
    }
    if members.get("additionalProperties").is_some_and(is_nullable) {
        members.remove("required");
    }
    if nullable {
        members.remove("type");
        members.remove("nullable");
    }
    if nullable || preserves {
        members.remove("items");
        members.remove("properties");
    }
    let kind = members.get("type").and_then(Value::as_str);
    if kind == Some("array") && !members.contains_key("items") || preserves && kind == Some("object") {
        members.remove("type");
    }
}

/// Visits a schema and its subschemas, the outer ones first.
fn each_schema(schema: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    visit(schema);
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = members.get_mut(nested).filter(|nested| nested.is_object()) {
            each_schema(nested, visit);
        }
    }
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        properties.values_mut().for_each(|own| each_schema(own, visit));
    }
}
