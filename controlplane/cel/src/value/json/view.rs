//! Views of JSON by schema.

use api::duration;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::{Fields, Form, Items, List, Map};
use crate::schema::{Format, Schema, Shape};
use crate::value::time;
use crate::value::{Error, Value};

/// The value of JSON by its schema; without one, by JSON's own types.
pub fn view<'a>(json: &'a Json, schema: Option<&'a Schema>) -> Result<Value<'a>, Error> {
    let Some(schema) = schema else {
        return Ok(untyped(json));
    };
    match (&schema.shape, json) {
        (Shape::Dyn, _) | (Shape::IntOrString, Json::Number(_) | Json::String(_)) => Ok(untyped(json)),
        (_, Json::Null) if schema.nullable => Ok(Value::Null),
        (_, Json::Null) => Err(Error::new("invalid data, got null for schema with nullable=false")),
        (Shape::Object(object), Json::Object(entries)) => {
            Ok(Value::Map(Map(Form::Json(entries, Fields::Object(object)))))
        }
        (Shape::Map(values), Json::Object(entries)) => Ok(Value::Map(Map(Form::Json(entries, Fields::Values(values))))),
        (Shape::List { items, kind }, Json::Array(values)) => Ok(Value::List(List {
            items: Items::Json(values, Some(items)),
            kind: Some(kind),
        })),
        (Shape::String(format), Json::String(text)) => formatted(text, *format),
        (Shape::Bool, Json::Bool(value)) => Ok(Value::Bool(*value)),
        (Shape::Int, Json::Number(number)) => match number.as_i64() {
            Some(value) => Ok(Value::Int(value)),
            None => match number.as_f64().and_then(crate::value::whole) {
                Some(value) => Ok(Value::Int(value)),
                None => Err(mismatch(&schema.shape, json)),
            },
        },
        (Shape::Double, Json::Number(number)) => Ok(Value::Double(number.as_f64().unwrap_or_default())),
        _ => Err(mismatch(&schema.shape, json)),
    }
}

/// Error for a value whose type differs from the schema's.
fn mismatch(shape: &Shape, json: &Json) -> Error {
    let given = match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    };
    let expected = match shape {
        Shape::Object(_) | Shape::Map(_) => "expected a map for the provided schema with type=object",
        Shape::List { .. } => "expected an array for the provided schema with type=array",
        Shape::IntOrString => "expected XIntOrString value to be either a string or integer",
        Shape::String(_) => return Error::new(format!("invalid data, expected string, got {given}")),
        Shape::Double => return Error::new(format!("invalid data, expected float, got {given}")),
        Shape::Int => return Error::new(format!("invalid data, expected int, got {given}")),
        Shape::Bool | Shape::Dyn => return Error::new(format!("invalid data, expected bool, got {given}")),
    };
    Error::new(format!("invalid data, {expected}"))
}

fn untyped(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => number
            .as_i64()
            .map_or_else(|| Value::Double(number.as_f64().unwrap_or_default()), Value::Int),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::List(List {
            items: Items::Json(items, None),
            kind: None,
        }),
        Json::Object(entries) => Value::Map(Map(Form::Json(entries, Fields::Any))),
    }
}

fn formatted(text: &str, format: Format) -> Result<Value<'_>, Error> {
    let read = match format {
        Format::Text => Some(Value::from(text)),
        Format::Bytes => STANDARD.decode(text).ok().map(|bytes| Value::Bytes(bytes.into())),
        Format::Date => time::Timestamp::parse(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
        Format::DateTime => time::Timestamp::parse(text).map(Value::Timestamp),
        Format::Duration => duration::parse(text).ok().map(Value::Duration),
    };
    let what = match format {
        Format::Text => "text",
        Format::Bytes => "byte formatted string",
        Format::Date => "date formatted string",
        Format::DateTime => "date-time formatted string",
        Format::Duration => "duration",
    };
    read.ok_or_else(|| Error::new(format!("Invalid {what} {text}: it has another format")))
}
