//! JSON that Go reads and the types do not.

use serde_json::Value;

use super::misfit::is_blank;
use crate::schema::{Field, Form, Schema, Shape};

/// Go's time that is none, for the types that cannot be without one. Clients in Go take it for none again, and those in
/// other languages, which refuse null there, can read it.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// The times without which the types read no message.
const REQUIRED_TIMES: [(&str, &str); 2] = [
    ("meta.v1.Condition", "lastTransitionTime"),
    ("events.v1.EventSeries", "lastObservedTime"),
];

/// Makes of the members of a message what the types want: numbers that are quantities become texts, quantities lose the blanks around them, nulls in lists and maps
/// what Go puts there, times that must be there Go's zero, and base64 loses its ends of lines.
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
