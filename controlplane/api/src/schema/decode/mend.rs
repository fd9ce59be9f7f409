//! Conversion of JSON that Go accepts and the types do not.

use serde_json::Value;

use super::misfit::is_blank;
use crate::schema::{Field, Form, Schema, Shape};

/// Go's zero time, for types whose times are mandatory. Go clients read it as zero again, and
/// clients in other languages, which reject null there, can parse it.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Times that are mandatory for the types.
const REQUIRED_TIMES: [(&str, &str); 2] = [
    ("meta.v1.Condition", "lastTransitionTime"),
    ("events.v1.EventSeries", "lastObservedTime"),
];

/// Converts the members of a message to the form that the types expect: numbers to texts for
/// quantities, quantities without blanks, Go's zero values for nulls in lists and maps, Go's zero
/// time for missing mandatory times, and base64 without line ends.
pub(super) fn message(schema: Schema, value: &mut Value) {
    let required = REQUIRED_TIMES.iter().find(|(name, _)| *name == schema.name());
    if let (Some((_, time)), Some(members)) = (required, value.as_object_mut())
        && members.get(*time).is_none_or(Value::is_null)
    {
        members.insert((*time).to_owned(), Value::from(NO_TIME));
    }
    for (name, member) in value.as_object_mut().into_iter().flatten() {
        let Some(field) = schema.field(name) else { continue };
        match (field.shape, member) {
            (Shape::List, Value::Array(items)) => items.iter_mut().for_each(|item| listed(field, item)),
            (Shape::Map, Value::Object(members)) => members.values_mut().for_each(|item| listed(field, item)),
            (Shape::One | Shape::Inline, member) => one(field, member),
            (Shape::List | Shape::Map, _) => {}
        }
    }
}

fn listed(field: &Field, value: &mut Value) {
    if value.is_null() {
        *value = match field.form {
            Form::String | Form::Bytes => Value::from(""),
            Form::Quantity => Value::from("0"),
            Form::Bool => Value::from(false),
            Form::Int32 | Form::Int64 | Form::Double | Form::IntOrString => Value::from(0),
            Form::Message(_) => Value::Object(serde_json::Map::new()),
            Form::Time | Form::MicroTime => Value::from(NO_TIME),
            Form::Duration | Form::RawExtension | Form::FieldsV1 | Form::Strings | Form::Alternative(_) => Value::Null,
        };
    }
    one(field, value);
}

fn one(field: &Field, value: &mut Value) {
    match (field.form, &*value) {
        (Form::Quantity, Value::Number(number)) => *value = Value::String(number.to_string()),
        (Form::Quantity, Value::String(text)) if text.starts_with(is_blank) || text.ends_with(is_blank) => {
            *value = Value::from(text.trim_matches(is_blank));
        }
        (Form::Bytes, Value::String(text)) if text.contains(['\r', '\n']) => {
            *value = Value::String(text.replace(['\r', '\n'], ""));
        }
        (Form::Message(_), Value::Object(_)) => {
            if let Some(schema) = field.message() {
                message(schema, value);
            }
        }
        _ => {}
    }
}
