//! Schemas of a document: k8s-openapi's definitions in upstream's form, with the extensions of our
//! table.

use std::collections::BTreeSet;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIResourceList, DeleteOptions, ListMeta, ObjectMeta, Patch, Status, WatchEvent,
};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{group_version_kind, marks};
use crate::kind::{Subresource, Verbs};
use crate::registration::Registration;
use crate::schema::Schema;

/// Prefix of references to definitions in a document.
const DEFINITIONS: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
/// Prefix of upstream's definitions of custom kinds.
const EXTENSIONS: &str = "apiextensions-apiserver.pkg.apis.";
/// Prefix of upstream's definitions of the aggregation layer.
const AGGREGATION: &str = "kube-aggregator.pkg.apis.";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
/// Fields that upstream requires, where they differ from the Rust types.
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
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
/// The definitions of kinds that every group version has.
pub(super) const EVERYWHERE: [(&str, &str); 2] = [(DELETE_OPTIONS, "DeleteOptions"), (WATCH_EVENT, "WatchEvent")];
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
pub(super) const EVICTION: &str = "io.k8s.api.policy.v1.Eviction";
pub(super) const TOKEN_REQUEST: &str = "io.k8s.api.authentication.v1.TokenRequest";

/// All definitions that the rows of one group version need. Some embed one of the other kinds, as a
/// StatefulSet its claims.
pub(super) fn of(kinds: &[Registration], rows: &[&Registration]) -> Map<String, Value> {
    let has = |subresource| rows.iter().any(|row| row.has(subresource));
    let mut definitions = defined(|generator| {
        generator.subschema_for::<APIResourceList>();
        generator.subschema_for::<DeleteOptions>();
        generator.subschema_for::<ListMeta>();
        generator.subschema_for::<Patch>();
        generator.subschema_for::<Status>();
        generator.subschema_for::<WatchEvent<RawExtension>>();
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
            row.define(generator);
            if row.is_defined() {
                generator.subschema_for::<ObjectMeta>();
            }
        }
    });
    for row in kinds {
        if let Some(definition) = definitions.get_mut(&name_of(row)) {
            mark_kind(definition, &[group_version_kind(row.group, row.version, row.kind)]);
        }
    }
    for row in rows.iter().filter(|row| row.verbs != Verbs::CreateOnly) {
        let name = name_of(row);
        let list = list(row, &name, definitions.get(&name));
        definitions.insert(format!("{name}List"), list);
    }
    if let Some(event) = definitions.get_mut(WATCH_EVENT) {
        describe_object(event);
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

/// Definitions that a generator collects, in upstream's form.
pub(super) fn defined(define: impl FnOnce(&mut SchemaGenerator)) -> Map<String, Value> {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.clear();
    let mut generator = settings.into_generator();
    define(&mut generator);
    let mut definitions = generator.take_definitions(false);
    for (name, definition) in &mut definitions {
        finish(name, definition);
    }
    definitions
}

/// The name of a definition that all groups share.
pub(super) fn of_meta(kind: &str) -> String {
    format!("{META}{kind}")
}

/// Adds the extension of a kind that all groups share.
pub(super) fn mark_meta(definitions: &mut Map<String, Value>, kind: &str) {
    if let Some(definition) = definitions.get_mut(&of_meta(kind)) {
        mark_kind(definition, &[group_version_kind("", "v1", kind)]);
    }
}

/// Moves the description of a watch event's object from the event to its field, where the Rust type
/// lacks it.
fn describe_object(event: &mut Value) {
    const OBJECT: &str = "Object is:";
    let whole = event.get("description").and_then(Value::as_str).unwrap_or_default();
    let Some((own, object)) = whole.split_once(OBJECT) else {
        return;
    };
    let (own, object) = (own.trim_end().to_owned(), format!("{OBJECT}{}", object.trim_end()));
    if let Some(Value::Object(members)) = event.pointer_mut("/properties/object") {
        members.insert("description".to_owned(), Value::from(object));
    }
    if let Some(property) = event.pointer_mut("/properties/object") {
        wrap_references(property);
    }
    if let Value::Object(members) = event {
        members.insert("description".to_owned(), Value::from(own));
    }
}

/// The name of a kind's definition: `io.k8s.api.apps.v1.Deployment`.
pub(super) fn name_of(row: &Registration) -> String {
    if row.is_defined() {
        let group: Vec<&str> = row.group.rsplit('.').collect();
        return format!("{}.{}.{}", group.join("."), row.version, row.kind);
    }
    let elsewhere = match row.group {
        "apiextensions.k8s.io" => Some((EXTENSIONS, "apiextensions")),
        "apiregistration.k8s.io" => Some((AGGREGATION, "apiregistration")),
        _ => None,
    };
    if let Some((place, group)) = elsewhere {
        return format!("io.k8s.{place}{group}.{}.{}", row.version, row.kind);
    }
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

/// Adds the extension to kinds that belong to no row, or to every group version.
fn mark_common(rows: &[&Registration], definitions: &mut Map<String, Value>) {
    for (name, kind) in EVERYWHERE {
        if let Some(definition) = definitions.get_mut(name) {
            mark_everywhere(definition, kind, rows.iter().copied());
        }
    }
    mark_meta(definitions, "APIResourceList");
    mark_meta(definitions, "Status");
    let marks = [
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

/// Adds the extension to deletion options and watch events, which are kinds of every group version.
pub(super) fn mark_everywhere<'r>(
    definition: &mut Value,
    kind: &str,
    rows: impl IntoIterator<Item = &'r Registration>,
) {
    let own = rows.into_iter().map(|row| (row.group, row.version));
    let group_versions: BTreeSet<_> = own.chain([("", "v1")]).collect();
    let kinds: Vec<_> = group_versions
        .into_iter()
        .map(|(group, version)| group_version_kind(group, version, kind))
        .collect();
    mark_kind(definition, &kinds);
}

/// Security scheme of bearer tokens.
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
    // The Rust types always have metadata; clients need not send it.
    if let Some(Value::Array(required)) = members.get_mut("required") {
        required.retain(|name| name != "metadata");
        if required.is_empty() {
            members.remove("required");
        }
    }
}

/// `LIST TEXT TEXT TEXT`, separated by tabs: upstream's descriptions of a list, its metadata and
/// its items.
static LISTS: &str = include_str!("../../../schema/lists.txt");

fn list(row: &Registration, name: &str, of: Option<&Value>) -> Value {
    let short = name.strip_prefix("io.k8s.api.").unwrap_or(name);
    let mut lines = LISTS
        .lines()
        .filter_map(|line| line.strip_prefix(short)?.strip_prefix("List\t"));
    let texts: Vec<&str> = lines.next().map(|line| line.split('\t').collect()).unwrap_or_default();
    let text = |at: usize, otherwise: String| texts.get(at).map_or(otherwise, |text| (*text).to_owned());
    // Descriptions of `apiVersion` and `kind` are the same for every kind.
    let said = |field: &str, otherwise: String| {
        let said = of.and_then(|of| of.pointer(&format!("/properties/{field}/description")));
        said.cloned().unwrap_or_else(|| Value::from(otherwise))
    };
    let version = said(
        "apiVersion",
        "The version of this representation of the list.".to_owned(),
    );
    let kind = said("kind", format!("Always {}.", row.list_kind));
    let mut list = json!({
        "description": text(0, format!("{} is a list of {}.", row.list_kind, row.kind)),
        "type": "object",
        "properties": {
            "apiVersion": {"description": version, "type": "string"},
            "kind": {"description": kind, "type": "string"},
            "metadata": {
                "allOf": [reference("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")],
                "default": {},
                "description": text(1, "Standard list metadata.".to_owned()),
            },
            "items": {
                "description": text(2, format!("List of {} objects.", row.kind)),
                "type": "array",
                "items": reference(name),
            },
        },
        "required": ["items"],
        "x-kubernetes-group-version-kind": [group_version_kind(row.group, row.version, row.list_kind)],
    });
    for part in ["", "/properties/metadata", "/properties/items"] {
        if let Some(Value::Object(members)) = list.pointer_mut(part) {
            members.retain(|name, text| name != "description" || text != "");
        }
    }
    list
}

/// Converts the Rust types' schemas to upstream's form, with the extensions of our table.
fn finish(name: &str, definition: &mut Value) {
    let Some(members) = definition.as_object_mut() else {
        return;
    };
    // Upstream's definitions of JSON and of alternatives to a schema have only a description.
    let short = name
        .strip_prefix("io.k8s.")
        .and_then(|name| name.strip_prefix(EXTENSIONS));
    let message = short.and_then(|short| short.rsplit('.').next()).unwrap_or_default();
    if message == "JSON" || message.starts_with("JSONSchemaPropsOr") {
        members.retain(|name, _| name == "description");
        return;
    }
    let either = match name {
        INT_OR_STRING => Some((["integer", "string"], Some("int-or-string"))),
        QUANTITY => Some((["string", "number"], None)),
        _ => None,
    };
    if let Some((types, format)) = either {
        members.remove("x-kubernetes-int-or-string");
        let types = types.map(|own| json!({"type": own}));
        members.insert("oneOf".to_owned(), json!(types));
        if let Some(format) = format {
            members.insert("format".to_owned(), Value::from(format));
        }
    }
    let schema = short_name(name).and_then(|name| Schema::named(&name));
    if let Some(schema) = schema {
        marks::mark_message(members, schema);
    }
    if let (Some(schema), Some(Value::Array(required))) = (schema, members.get_mut("required")) {
        required.sort_by_key(|name| schema.placed(name.as_str().unwrap_or_default()).map(|(place, _)| place));
    }
    let required = members.get("required").and_then(Value::as_array).cloned();
    let required = required.unwrap_or_default();
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        for (json, property) in properties {
            wrap_references(property);
            let required = required.iter().any(|name| name == json);
            match schema {
                Some(schema) => {
                    if let Some(field) = schema.field(json) {
                        marks::mark(property, schema, field, required);
                    }
                }
                None if required => marks::empty_text(property),
                None => {}
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
    let name = name
        .strip_prefix(EXTENSIONS)
        .or(name.strip_prefix(AGGREGATION))
        .or(name.strip_prefix("apimachinery.pkg.apis."));
    name.map(str::to_owned)
}

/// Wraps references with siblings in an `allOf`, as upstream does: OpenAPI 3.0 ignores the siblings
/// of a `$ref`.
fn wrap_references(property: &mut Value) {
    let Some(members) = property.as_object_mut() else {
        return;
    };
    // Optional fields of Skiff's own types.
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
