//! Properties of a field's schema in addition to its type: patch strategy, list type,
//! default and enum; and those of a message.

use serde_json::{Map, Value, json};

use crate::schema::{Field, Form, ListType, Schema, Shape};

/// Upstream's fields whose types are enumerations, written by `schema/enums.py`: a line
/// `# MESSAGE.FIELD` for each, then the end of their descriptions, with the values in backticks.
static ENUMS: &str = include_str!("../../../schema/enums.txt");

/// `MESSAGE.FIELD VALUE`, sorted: upstream's defaults that do not follow from the types and from
/// what is required, as those of pointers that are required and of `+default`; `null` is none.
static DEFAULTS: &str = include_str!("../../../schema/defaults.txt");

/// Upstream's unions (`+union`).
const UNIONS: [(&str, &str); 6] = [
    (
        "core.v1.AppArmorProfile",
        r#"{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}"#,
    ),
    (
        "core.v1.PodSchedulingGroup",
        r#"{"fields-to-discriminateBy": {"podGroupName": "PodGroupName"}}"#,
    ),
    (
        "core.v1.SeccompProfile",
        r#"{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}"#,
    ),
    (
        "flowcontrol.v1.LimitResponse",
        r#"{"discriminator": "type", "fields-to-discriminateBy": {"queuing": "Queuing"}}"#,
    ),
    (
        "flowcontrol.v1.PriorityLevelConfigurationSpec",
        r#"{"discriminator": "type", "fields-to-discriminateBy": {"exempt": "Exempt", "limited": "Limited"}}"#,
    ),
    (
        "flowcontrol.v1.Subject",
        r#"{"discriminator": "kind", "fields-to-discriminateBy": {"group": "Group", "serviceAccount": "ServiceAccount", "user": "User"}}"#,
    ),
];

/// Adds the extensions of a message.
pub(super) fn mark_message(members: &mut Map<String, Value>, message: Schema) {
    if message.is_atomic() {
        members.insert("x-kubernetes-map-type".to_owned(), Value::from("atomic"));
    }
    if let Some((_, union)) = UNIONS.iter().find(|(name, _)| *name == message.name()) {
        let union: Value = serde_json::from_str(union).unwrap_or_default();
        members.insert("x-kubernetes-unions".to_owned(), json!([union]));
    }
}

/// Adds the extensions and defaults of one property of a message.
pub(super) fn mark(property: &mut Value, message: Schema, field: &Field, required: bool) {
    let Some(members) = property.as_object_mut() else {
        return;
    };
    extensions(members, field);
    defaults(members, message, field, required);
    enumeration(members, message, field);
}

/// Adds the default that Go has for a text that is not sent, in a structure that is not a message.
pub(super) fn empty_text(property: &mut Value) {
    if let Value::Object(members) = property
        && members.get("type").and_then(Value::as_str) == Some("string")
    {
        members.insert("default".to_owned(), Value::from(""));
    }
}

fn extensions(members: &mut Map<String, Value>, field: &Field) {
    let is_list = members.get("type").and_then(Value::as_str) == Some("array");
    let mut mark = |name: &str, value: Value| members.insert(format!("x-kubernetes-{name}"), value);
    if !field.patch.merge_key.is_empty() {
        mark("patch-merge-key", Value::from(field.patch.merge_key));
    }
    match (field.patch.merge, field.patch.retain_keys) {
        (true, true) => drop(mark("patch-strategy", Value::from("merge,retainKeys"))),
        (true, false) => drop(mark("patch-strategy", Value::from("merge"))),
        (false, true) => drop(mark("patch-strategy", Value::from("retainKeys"))),
        (false, false) if field.patch.replace => drop(mark("patch-strategy", Value::from("replace"))),
        (false, false) => {}
    }
    match &field.list_type {
        None => {}
        Some(ListType::Atomic) if is_list => drop(mark("list-type", Value::from("atomic"))),
        Some(ListType::Atomic) => drop(mark("map-type", Value::from("atomic"))),
        Some(ListType::Granular) => drop(mark("map-type", Value::from("granular"))),
        Some(ListType::Set) => drop(mark("list-type", Value::from("set"))),
        Some(ListType::Map(keys)) => {
            mark("list-map-keys", Value::from(keys.to_vec()));
            mark("list-type", Value::from("map"));
        }
    }
}

/// Adds Go's zero values as defaults for fields that are not pointers; the values of lists and maps
/// have none.
fn defaults(members: &mut Map<String, Value>, message: Schema, field: &Field, required: bool) {
    if field.shape != Shape::One {
        return;
    }
    let name = format!("{}.{} ", message.name(), field.json);
    let default = if let Some(own) = DEFAULTS.lines().find_map(|line| line.strip_prefix(&name)) {
        serde_json::from_str(own).unwrap_or_default()
    } else if let Some(default) = field.key_default {
        Value::from(default)
    } else if field.always_written || required {
        field.form.zero()
    } else {
        Value::Null
    };
    if default.is_null() {
        return;
    }
    // OpenAPI 3.0 ignores the siblings of a reference.
    if let Some(reference) = members.remove("$ref") {
        members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
    }
    members.insert("default".to_owned(), default);
}

/// Adds the enum; that of a list or a map to its values, without a text.
fn enumeration(members: &mut Map<String, Value>, message: Schema, field: &Field) {
    if field.form != Form::String {
        return;
    }
    let name = format!("# {}.{}\n", message.name(), field.json);
    let Some((_, record)) = ENUMS.split_once(&name) else {
        return;
    };
    let is_name = |line: &&str| line.starts_with('#');
    let lines = record.lines().skip_while(is_name).take_while(|line| !is_name(line));
    let lines: Vec<&str> = lines.collect();
    let values = lines.iter().filter_map(|line| line.split('`').nth(1));
    let values: Value = values.map(|value| value.trim_matches('"')).collect();
    let inner = match field.shape {
        Shape::One | Shape::Inline => None,
        Shape::List => members.get_mut("items"),
        Shape::Map => members.get_mut("additionalProperties"),
    };
    if let Some(Value::Object(inner)) = inner {
        inner.insert("enum".to_owned(), values);
        return;
    }
    if let Some(Value::String(description)) = members.get_mut("description") {
        description.push_str("\n\n");
        description.push_str(&lines.join("\n"));
    }
    members.insert("enum".to_owned(), values);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn unions_and_defaults_are_json() {
        let defaults = super::DEFAULTS.lines().map(|line| line.split_once(' ').unwrap());
        for (name, text) in super::UNIONS.into_iter().chain(defaults) {
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{name}");
        }
    }
}
