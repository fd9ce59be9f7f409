//! Metadata of embedded objects (`pkg/apiserver/schema/objectmeta`).

use api::Invalid;
use api::kind::Scope;
use api::names::{self, Rule};
use api::validation::metadata;
use serde_json::{Map, Value};

use crate::path::Path;
use crate::render;
use crate::structural::Node;

/// Drops unknown fields of the metadata of embedded objects. Returns their paths.
///
/// # Errors
/// A field has the wrong type.
pub(crate) fn coerce(
    node: &Node,
    value: &mut Value,
    path: &Path<'_>,
    is_object: bool,
    unknown: &mut Vec<String>,
) -> Result<(), Invalid> {
    match value {
        Value::Object(members) => {
            if is_object {
                coerce_own(members, path, unknown)?;
            }
            for (name, value) in members {
                if let Some(below) = node.property(name) {
                    coerce(below, value, &path.child(name), below.is_embedded(), unknown)?;
                } else if let Some(below) = node.member(name) {
                    coerce(below, value, &path.key(name), below.is_embedded(), unknown)?;
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = node.items() {
                for (index, item) in items.iter_mut().enumerate() {
                    coerce(below, item, &path.index(index), below.is_embedded(), unknown)?;
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn coerce_own(members: &mut Map<String, Value>, path: &Path<'_>, unknown: &mut Vec<String>) -> Result<(), Invalid> {
    for name in ["apiVersion", "kind"] {
        if let Some(value) = members.get(name).filter(|value| !value.is_string()) {
            return Err(not_a_string(path, name, value));
        }
    }
    let Some(own) = members.get_mut("metadata") else {
        return Ok(());
    };
    let at = path.child("metadata");
    let read = api::decode::metadata(own);
    let (read, dropped) =
        read.map_err(|error| Invalid::rendered(at.to_string(), render::value(own), error.to_string()))?;
    unknown.extend(dropped.into_iter().map(|name| at.child(&name).to_string()));
    *own = serde_json::to_value(&read).unwrap_or_default();
    if let Some(own) = own.as_object_mut() {
        // Go omits these (`omitempty`).
        own.retain(|_, value| match value {
            Value::Null => false,
            Value::Bool(_) => true,
            Value::Number(number) => number.as_i64() != Some(0),
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
        });
    }
    Ok(())
}

fn not_a_string(path: &Path<'_>, name: &str, value: &Value) -> Invalid {
    Invalid::rendered(path.child(name).to_string(), render::value(value), "must be a string")
}

/// Validates the metadata of embedded objects.
pub(crate) fn check(node: &Node, value: &Value, path: &Path<'_>, is_object: bool, found: &mut Vec<Invalid>) {
    match value {
        Value::Object(members) => {
            if is_object {
                check_own(members, path, found);
            }
            for (name, value) in members {
                if let Some(below) = node.property(name) {
                    check(below, value, &path.child(name), below.is_embedded(), found);
                } else if let Some(below) = node.member(name) {
                    check(below, value, &path.key(name), below.is_embedded(), found);
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = node.items() {
                for (index, item) in items.iter().enumerate() {
                    check(below, item, &path.index(index), below.is_embedded(), found);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_own(members: &Map<String, Value>, path: &Path<'_>, found: &mut Vec<Invalid>) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name).to_string();
        let Some(value) = members.get(name) else {
            found.push(Invalid::required(at, ""));
            continue;
        };
        let Some(text) = value.as_str() else {
            found.push(not_a_string(path, name, value));
            continue;
        };
        if text.is_empty() {
            found.push(Invalid::value(at, text, "must not be empty"));
        } else if name == "apiVersion" {
            if text.matches('/').count() > 1 {
                found.push(Invalid::value(
                    at,
                    text,
                    format!("unexpected GroupVersion string: {text}"),
                ));
            }
        } else {
            let wrong = names::dns1035_label(&text.to_lowercase());
            if !wrong.is_empty() {
                let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                found.push(Invalid::value(at, text, detail));
            }
        }
    }
    let Some(value) = members.get("metadata") else { return };
    match api::decode::metadata(value) {
        Err(error) => {
            let at = path.child("metadata").to_string();
            found.push(Invalid::rendered(at, render::value(value), error.to_string()));
        }
        Ok((mut own, _)) => {
            if own.name.as_deref().unwrap_or_default().is_empty() {
                // A name is required in general, but not here.
                own.name = Some("fakename".to_owned());
            }
            let is_namespaced = own.namespace.as_deref().is_some_and(|namespace| !namespace.is_empty());
            let scope = if is_namespaced {
                Scope::Namespaced
            } else {
                Scope::Cluster
            };
            for mut error in metadata::validate(&own, scope, Rule::PathSegment) {
                error.field = path.child(&error.field).to_string();
                found.push(error);
            }
        }
    }
}
