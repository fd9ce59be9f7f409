//! Defaults must be valid against their schema (`pkg/apiserver/schema/defaulting/validation.go`).

use serde_json::{Map, Value};

use super::MAX_FOUND;
use crate::Invalid;
use crate::path::Path;
use crate::rules::{Budget, Scope};
use crate::structural::{META, Node};
use crate::{metadata, prune, render, validate};

/// Validates the defaults of a whole schema.
pub(super) fn check(root: &Node, at: &Path<'_>) -> Vec<Invalid> {
    let mut check = Check::default();
    let object = Object {
        node: root,
        steps: Vec::new(),
        is_in_metadata: false,
    };
    check.below(root, at, &object, true);
    check.found
}

#[derive(Default)]
struct Check {
    found: Vec<Invalid>,
    /// Remaining cost of rules for all defaults together.
    budget: Budget,
}

/// The object that contains a default.
#[derive(Clone)]
struct Object<'a> {
    node: &'a Node,
    /// Steps from the object to the default; `None` for a list item.
    steps: Vec<Option<&'a str>>,
    is_in_metadata: bool,
}

impl<'a> Object<'a> {
    fn with(&self, step: Option<&'a str>) -> Self {
        let mut other = self.clone();
        other.steps.push(step);
        other
    }

    /// An object that contains only the default.
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

impl Check {
    fn below<'a>(&mut self, node: &'a Node, at: &Path<'_>, object: &Object<'a>, is_object: bool) {
        if self.found.len() >= MAX_FOUND || self.budget.is_over() {
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
                self.in_metadata(node, value, &path, object, is_object);
            } else {
                self.plain(node, value, &path, is_object);
            }
        }
        if let Some(items) = node.items() {
            self.below(items, &at.child("items"), &object.with(None), items.is_embedded());
        }
        let properties = at.child("properties");
        for (name, property) in node.properties() {
            let mut object = object.with(Some(name));
            object.is_in_metadata |= is_object && META.contains(&name);
            self.below(property, &properties.key(name), &object, property.is_embedded());
        }
    }

    fn plain(&mut self, node: &Node, value: &Value, at: &Path<'_>, is_object: bool) {
        let mut pruned = value.clone();
        let dropped = if is_object {
            prune::object(node, &mut pruned)
        } else {
            prune::value(node, &mut pruned)
        };
        if !dropped.is_empty() || pruned != *value {
            let detail = "must not have unknown fields";
            self.found
                .push(Invalid::rendered(at.to_string(), render::value(value), detail));
        }
        let mut coerced = value.clone();
        if let Err(error) = metadata::coerce(node, &mut coerced, at, is_object, &mut Vec::new()) {
            self.found.push(error);
            return;
        }
        let before = self.found.len();
        metadata::check(node, &coerced, at, is_object, &mut self.found);
        if self.found.len() == before {
            self.value(node, &coerced, at, is_object);
        }
    }

    fn in_metadata(&mut self, node: &Node, value: &Value, at: &Path<'_>, object: &Object<'_>, is_object: bool) {
        let mut whole = object.around(value);
        let mut wrong = Vec::new();
        match metadata::coerce(object.node, &mut whole, &Path::ROOT, true, &mut Vec::new()) {
            Err(error) => wrong.push(error),
            Ok(()) => metadata::check(object.node, &whole, &Path::ROOT, true, &mut wrong),
        }
        if wrong.is_empty() {
            self.value(node, value, at, is_object);
            return;
        }
        let texts: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let text = match texts.as_slice() {
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let detail = format!("must result in valid metadata: {text}");
        self.found
            .push(Invalid::rendered(at.to_string(), render::value(value), detail));
    }

    /// Validates a default against the schema and its rules.
    fn value(&mut self, node: &Node, value: &Value, at: &Path<'_>, is_object: bool) {
        let wrong = validate::check_default(node, value, at);
        if wrong.is_empty()
            && let Some(rules) = Scope::of_node(node, is_object)
        {
            let wrong = rules.check_default(node, value, at, &mut self.budget);
            self.found.extend(wrong);
        }
        self.found.extend(wrong);
    }
}
