//! Defaults: they are what their schema admits (`pkg/apiserver/schema/defaulting/validation.go`).

use serde_json::{Map, Value};

use super::{DefaultValue, MAX_FOUND};
use crate::Invalid;
use crate::path::Path;
use crate::structural::{META, Node};
use crate::{metadata, prune, render, validate};

/// The fault of the defaults of a whole object.
pub(super) fn check(root: &Node, at: &Path<'_>) -> Vec<Invalid> {
    let mut found = Vec::new();
    let object = Object {
        node: root,
        steps: Vec::new(),
        is_in_metadata: false,
    };
    below(root, at, &object, true, &mut found);
    found
}

/// The object that a default is a part of.
#[derive(Clone)]
struct Object<'a> {
    node: &'a Node,
    /// The way to the default; none for an item.
    steps: Vec<Option<&'a str>>,
    is_in_metadata: bool,
}

impl<'a> Object<'a> {
    fn with(&self, step: Option<&'a str>) -> Self {
        let mut other = self.clone();
        other.steps.push(step);
        other
    }

    /// An object with nothing but the default.
    fn around(&self, value: &Value) -> Value {
        let mut value = value.clone();
        for step in self.steps.iter().rev() {
            value = match step {
                None => Value::Array(vec![value]),
                Some(name) => Value::Object(Map::from_iter([((*name).to_owned(), value)])),
            };
        }
        if let Some(members) = value.as_object_mut() {
            for (name, text) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
                members.entry(name).or_insert_with(|| Value::from(text));
            }
        }
        value
    }
}

fn below<'a>(node: &'a Node, at: &Path<'_>, object: &Object<'a>, is_object: bool, found: &mut Vec<Invalid>) {
    if found.len() >= MAX_FOUND {
        return;
    }
    let own;
    let object = if is_object {
        own = Object {
            node,
            steps: Vec::new(),
            is_in_metadata: false,
        };
        &own
    } else {
        object
    };
    if let Some(value) = node.default_value() {
        let path = at.child("default");
        if object.is_in_metadata {
            in_metadata(node, value, &path, object, found);
        } else {
            plain(node, value, &path, is_object, found);
        }
    }
    if let Some(items) = node.items() {
        below(
            items,
            &at.child("items"),
            &object.with(None),
            items.is_embedded(),
            found,
        );
    }
    let properties = at.child("properties");
    for (name, property) in node.properties() {
        let mut object = object.with(Some(name));
        object.is_in_metadata |= is_object && META.contains(&name);
        below(property, &properties.key(name), &object, property.is_embedded(), found);
    }
}

fn plain(node: &Node, value: &Value, at: &Path<'_>, is_object: bool, found: &mut Vec<Invalid>) {
    let mut pruned = value.clone();
    let dropped = if is_object {
        prune::object(node, &mut pruned)
    } else {
        prune::value(node, &mut pruned)
    };
    if !dropped.is_empty() || pruned != *value {
        let detail = "must not have unknown fields";
        found.push(Invalid::rendered(at.to_string(), render::value(value), detail));
    }
    let mut coerced = value.clone();
    if let Err(error) = metadata::coerce(node, &mut coerced, at, is_object, &mut Vec::new()) {
        found.push(error);
        return;
    }
    let before = found.len();
    metadata::check(node, &coerced, at, is_object, found);
    if found.len() == before {
        found.extend(validate::check_default(node, &coerced, at));
    }
}

fn in_metadata(node: &Node, value: &Value, at: &Path<'_>, object: &Object<'_>, found: &mut Vec<Invalid>) {
    let mut whole = object.around(value);
    let mut wrong = Vec::new();
    match metadata::coerce(object.node, &mut whole, &Path::ROOT, true, &mut Vec::new()) {
        Err(error) => wrong.push(error),
        Ok(()) => metadata::check(object.node, &whole, &Path::ROOT, true, &mut wrong),
    }
    if wrong.is_empty() {
        found.extend(validate::check_default(node, value, at));
        return;
    }
    let texts: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    let text = match texts.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let detail = format!("must result in valid metadata: {text}");
    found.push(Invalid::rendered(at.to_string(), render::value(value), detail));
}

/// All defaults, as they are checked.
pub(super) fn all<'a>(node: &'a Node, at: &Path<'_>) -> Vec<DefaultValue<'a>> {
    let mut found = Vec::new();
    collect(node, at, &mut found);
    found
}

fn collect<'a>(node: &'a Node, at: &Path<'_>, found: &mut Vec<DefaultValue<'a>>) {
    if let Some(value) = node.default_value() {
        let path = at.child("default").to_string();
        found.push(DefaultValue { path, node, value });
    }
    if let Some(items) = node.items() {
        collect(items, &at.child("items"), found);
    }
    let properties = at.child("properties");
    for (name, property) in node.properties() {
        collect(property, &properties.key(name), found);
    }
}
