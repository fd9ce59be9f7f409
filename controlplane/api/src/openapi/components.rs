//! The schemas of a document: k8s-openapi's definitions, brought into upstream's form, with the marks of our table.

use std::collections::BTreeSet;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResourceList, DeleteOptions, ListMeta, Patch, Status};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{group_version_kind, marks};
use crate::kind::{Subresource, Verbs};
use crate::registration::Registration;
use crate::schema::Schema;

/// Where definitions are found inside of a document.
const DEFINITIONS: &str = "#/components/schemas/";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
/// What upstream requires, where the Rust types tell it otherwise.
const REQUIRED: [(&str, &[&str]); 10] = [
    ("io.k8s.api.core.v1.ConfigMapEnvSource", &[]),
    ("io.k8s.api.core.v1.ConfigMapKeySelector", &["key"]),
    ("io.k8s.api.core.v1.ConfigMapProjection", &[]),
    ("io.k8s.api.core.v1.ConfigMapVolumeSource", &[]),
    ("io.k8s.api.core.v1.Event", &["metadata", "involvedObject"]),
    ("io.k8s.api.core.v1.LocalObjectReference", &[]),
    ("io.k8s.api.core.v1.SecretEnvSource", &[]),
    ("io.k8s.api.core.v1.SecretKeySelector", &["key"]),
    ("io.k8s.api.core.v1.SecretProjection", &[]),
    ("io.k8s.api.events.v1.Event", &["eventTime"]),
];
pub(super) const RESOURCES: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
pub(super) const EVICTION: &str = "io.k8s.api.policy.v1.Eviction";
pub(super) const TOKEN_REQUEST: &str = "io.k8s.api.authentication.v1.TokenRequest";

/// All definitions that the rows of one group version need.
pub(super) fn of(rows: &[&Registration]) -> Map<String, Value> {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.clear();
    let mut generator = settings.into_generator();
    let has = |subresource| rows.iter().any(|row| row.has(subresource));
    generator.subschema_for::<APIResourceList>();
    generator.subschema_for::<DeleteOptions>();
    generator.subschema_for::<ListMeta>();
    generator.subschema_for::<Patch>();
    generator.subschema_for::<Status>();
    if has(Subresource::Scale) {
        generator.subschema_for::<Scale>();
    }
    if has(Subresource::Eviction) {
        generator.subschema_for::<Eviction>();
    }
    if has(Subresource::Token) {
        generator.subschema_for::<TokenRequest>();
    }
    for row in rows {
        (row.define)(&mut generator);
    }
    let mut definitions = generator.take_definitions(false);
    for (name, definition) in &mut definitions {
        finish(name, definition);
    }
    for row in rows {
        let name = name_of(row);
        if let Some(definition) = definitions.get_mut(&name) {
            mark_kind(definition, &[group_version_kind(row.group, row.version, row.kind)]);
        }
        if row.verbs != Verbs::CreateOnly {
            definitions.insert(format!("{name}List"), list(row, &name));
        }
    }
    for (name, required) in REQUIRED {
        if let Some(Value::Object(members)) = definitions.get_mut(name) {
            if required.is_empty() {
                members.remove("required");
            } else {
                members.insert("required".to_owned(), json!(required));
            }
        }
    }
    mark_common(rows, &mut definitions);
    definitions
}

/// The name of a kind's definition: `io.k8s.api.apps.v1.Deployment`.
pub(super) fn name_of(row: &Registration) -> String {
    let group = if row.group.is_empty() {
        "core"
    } else {
        row.group.split('.').next().unwrap_or(row.group)
    };
    format!("io.k8s.api.{group}.{}.{}", row.version, row.kind)
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{DEFINITIONS}{name}")})
}

/// The kinds that belong to no row, or to every group version.
fn mark_common(rows: &[&Registration], definitions: &mut Map<String, Value>) {
    if let Some(definition) = definitions.get_mut(DELETE_OPTIONS) {
        mark_options(definition, rows.iter().copied());
    }
    let marks = [
        (RESOURCES, vec![group_version_kind("", "v1", "APIResourceList")]),
        (STATUS, vec![group_version_kind("", "v1", "Status")]),
        (SCALE, vec![group_version_kind("autoscaling", "v1", "Scale")]),
        (EVICTION, vec![group_version_kind("policy", "v1", "Eviction")]),
        (
            TOKEN_REQUEST,
            vec![group_version_kind("authentication.k8s.io", "v1", "TokenRequest")],
        ),
    ];
    for (name, kinds) in marks {
        if let Some(definition) = definitions.get_mut(name) {
            mark_kind(definition, &kinds);
        }
    }
}

/// The options of deletions are a kind of every group version.
pub(super) fn mark_options<'r>(definition: &mut Value, rows: impl IntoIterator<Item = &'r Registration>) {
    let own = rows.into_iter().map(|row| (row.group, row.version));
    let group_versions: BTreeSet<_> = own.chain([("", "v1")]).collect();
    let kinds: Vec<_> = group_versions
        .into_iter()
        .map(|(group, version)| group_version_kind(group, version, "DeleteOptions"))
        .collect();
    mark_kind(definition, &kinds);
}

/// How clients say who they are.
pub(super) fn bearer_token() -> Value {
    json!({
        "type": "apiKey",
        "in": "header",
        "name": "authorization",
        "description": "Authentication by a bearer token",
    })
}

fn mark_kind(definition: &mut Value, kinds: &[Value]) {
    let Some(members) = definition.as_object_mut() else {
        return;
    };
    members.insert(
        "x-kubernetes-group-version-kind".to_owned(),
        Value::Array(kinds.to_vec()),
    );
    // The Rust types always have metadata; clients need not send any.
    if let Some(Value::Array(required)) = members.get_mut("required") {
        required.retain(|name| name != "metadata");
        if required.is_empty() {
            members.remove("required");
        }
    }
}

fn list(row: &Registration, name: &str) -> Value {
    json!({
        "description": format!("{} is a list of {}.", row.list_kind, row.kind),
        "type": "object",
        "properties": {
            "apiVersion": {"description": "The version of this representation of the list.", "type": "string"},
            "kind": {"description": format!("Always {}.", row.list_kind), "type": "string"},
            "metadata": {
                "allOf": [reference("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")],
                "default": {},
                "description": "Standard list metadata.",
            },
            "items": {
                "description": "The objects.",
                "type": "array",
                "items": {"allOf": [reference(name)], "default": {}},
            },
        },
        "required": ["items"],
        "x-kubernetes-group-version-kind": [group_version_kind(row.group, row.version, row.list_kind)],
    })
}

/// Upstream's form for what the Rust types say in their own way, and the marks of our table.
fn finish(name: &str, definition: &mut Value) {
    let Some(members) = definition.as_object_mut() else {
        return;
    };
    let either = match name {
        INT_OR_STRING => Some(("integer", Some("int-or-string"))),
        QUANTITY => Some(("number", None)),
        _ => None,
    };
    if let Some((number, format)) = either {
        members.remove("x-kubernetes-int-or-string");
        members.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": number}]));
        if let Some(format) = format {
            members.insert("format".to_owned(), Value::from(format));
        }
    }
    let schema = short_name(name).and_then(|name| Schema::named(&name));
    let required = members.get("required").and_then(Value::as_array).cloned();
    let required = required.unwrap_or_default();
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        for (json, property) in properties {
            wrap_references(property);
            if let Some(schema) = schema
                && let Some(field) = schema.field(json)
            {
                let required = required.iter().any(|name| name == json);
                marks::mark(property, schema, field, required);
            }
        }
    }
}

/// `io.k8s.api.core.v1.Pod` to `core.v1.Pod`.
fn short_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("io.k8s.")?;
    if let Some(name) = name.strip_prefix("api.") {
        return Some(name.to_owned());
    }
    name.strip_prefix("apimachinery.pkg.apis.").map(str::to_owned)
}

/// OpenAPI 3.0 ignores what stands beside a `$ref`: upstream puts the reference into an `allOf` then.
fn wrap_references(property: &mut Value) {
    let Some(members) = property.as_object_mut() else {
        return;
    };
    // What may be there or not, of types of our own.
    if let Some(Value::Array(choices)) = members.remove("anyOf") {
        let reference = choices.into_iter().find_map(|choice| choice.get("$ref").cloned());
        members.extend(reference.map(|reference| ("$ref".to_owned(), reference)));
    }
    if members.len() > 1
        && let Some(reference) = members.remove("$ref")
    {
        members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(inner) = members.get_mut(nested) {
            wrap_references(inner);
        }
    }
}
