//! Schema validation of an applied object, with upstream's messages.

use std::collections::BTreeSet;

use serde_json::Value;

use super::key;
use super::shape::{Scalar, Shape, Types};
use super::types::Type;
use crate::schema::Schema;
use crate::schema::managed::set::shown;
use crate::value::go;

/// Maximum number of errors for one object.
const MAX_COMPLAINTS: usize = 100;

/// Validates an applied object; returns one message per error.
pub(in crate::schema::managed) fn check(types: Types<'_>, object: &Value) -> Vec<String> {
    let mut check = Check::default();
    check.value(Type::of_object(types), object);
    check.found
}

/// Upstream's text for several errors.
pub(in crate::schema::managed) fn joined(complaints: &[String]) -> String {
    match complaints {
        [only] => only.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    }
}

#[derive(Default)]
struct Check {
    path: String,
    found: Vec<String>,
}

impl Check {
    fn complain(&mut self, message: &str) {
        if self.found.len() >= MAX_COMPLAINTS {
            return;
        }
        self.found.push(if self.path.is_empty() {
            message.to_owned()
        } else {
            format!("{}: {message}", self.path)
        });
    }

    fn below(&mut self, element: &str, kind: Type<'_>, value: &Value) {
        let length = self.path.len();
        self.path.push_str(&shown(element));
        self.value(kind, value);
        self.path.truncate(length);
    }

    fn value(&mut self, kind: Type<'_>, value: &Value) {
        match (kind, value) {
            (_, Value::Null) | (Type::Shape(Shape::Deduced), _) => {}
            (Type::Scalar(scalar), value) => self.scalar(scalar, value),
            (Type::List(_) | Type::Shape(Shape::List { .. }), Value::Array(items)) => self.items(kind, items),
            (Type::List(_) | Type::Shape(Shape::List { .. }), other) => {
                self.complain(&format!("expected list, got &{{{}}}", go::text(other)));
            }
            (Type::Struct { schema, .. }, Value::Object(members)) => {
                for (name, value) in members {
                    let element = format!("f:{name}");
                    match schema.field(name) {
                        Some(field) => self.below(&element, Type::of_member(Some(field)), value),
                        None if is_type_meta(schema, name) => {
                            self.below(&element, Type::Scalar(Scalar::Text), value);
                        }
                        None => self.undeclared(&element),
                    }
                }
            }
            (Type::Map(_), Value::Object(members)) => {
                for (name, value) in members {
                    self.below(&format!("f:{name}"), kind.item(), value);
                }
            }
            (Type::Shape(Shape::Map(own)), Value::Object(members)) => {
                for (name, value) in members {
                    let element = format!("f:{name}");
                    if own.others.is_some() || own.fields.contains_key(name) {
                        self.below(&element, kind.member(name), value);
                    } else {
                        self.undeclared(&element);
                    }
                }
            }
            (Type::Struct { .. } | Type::Map(_) | Type::Shape(_), other) => {
                self.complain(&format!("expected map, got &{{{}}}", go::text(other)));
            }
        }
    }

    fn undeclared(&mut self, element: &str) {
        let length = self.path.len();
        self.path.push_str(&shown(element));
        self.complain("field not declared in schema");
        self.path.truncate(length);
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        let wrong = match scalar {
            Scalar::Any => None,
            Scalar::Number => {
                (!value.is_number()).then(|| format!("expected numeric (int or float), got {}", go::type_name(value)))
            }
            Scalar::Text => (!value.is_string()).then(|| format!("expected string, got {}", unstructured(value))),
            Scalar::Boolean => (!value.is_boolean()).then(|| format!("expected boolean, got {}", unstructured(value))),
        };
        if let Some(wrong) = wrong {
            self.complain(&wrong);
        }
    }

    fn items(&mut self, kind: Type<'_>, items: &[Value]) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            if kind.is_atomic() {
                self.below(&format!("i:{index}"), kind.item(), item);
                continue;
            }
            match key::of_value(kind, item) {
                Err(message) => self.complain(&format!("element {index}: {message}")),
                Ok(element) => {
                    if seen.contains(&element) {
                        self.complain(&format!("duplicate entries for key {}", shown(&element)));
                    }
                    self.below(&element, kind.item(), item);
                    seen.insert(element);
                }
            }
        }
    }
}

/// True for `apiVersion` and `kind`, which are in no protobuf message.
fn is_type_meta(schema: Schema, name: &str) -> bool {
    matches!(name, "apiVersion" | "kind") && schema.field("metadata").is_some()
}

/// Value of the wrong type, in upstream's notation.
fn unstructured(value: &Value) -> String {
    let inner = match value {
        Value::String(_) | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(_) | Value::Object(_) => format!("{}{{…}}", go::type_name(value)),
    };
    format!("&value.valueUnstructured{{Value:{inner}}}")
}
