//! Nulls and defaults (`pkg/apiserver/schema/defaulting/{prunenulls,algorithm}.go`).

use serde_json::Value;

use crate::structural::{Additional, Node};

/// Removes null fields that are neither nullable nor have a default.
pub(crate) fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(members) => members.retain(|name, value| {
            let Some(below) = node.member(name) else { return true };
            if value.is_null() {
                return below.is_nullable() || below.default_value().is_some();
            }
            drop_nulls(below, value);
            true
        }),
        Value::Array(items) => {
            if let Some(below) = node.items() {
                for item in items {
                    drop_nulls(below, item);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Sets the defaults of missing fields, and of null fields that are not nullable, recursively.
pub(crate) fn apply_defaults(node: &Node, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, below) in node.properties() {
                let Some(default) = below.default_value() else { continue };
                match members.get_mut(name) {
                    None => {
                        members.insert(name.to_owned(), default.clone());
                    }
                    Some(value) => replace_null(below, value),
                }
            }
            for (name, value) in members {
                if let Some(below) = node.property(name) {
                    apply_defaults(below, value);
                } else if let Some(Additional::Schema(below)) = node.additional() {
                    replace_null(below, value);
                    apply_defaults(below, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = node.items() {
                for item in items {
                    replace_null(below, item);
                    apply_defaults(below, item);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replace_null(node: &Node, value: &mut Value) {
    if value.is_null()
        && !node.is_nullable()
        && let Some(default) = node.default_value()
    {
        *value = default.clone();
    }
}
