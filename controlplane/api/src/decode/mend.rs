//! JSON that Go reads and the types do not.

use serde_json::Value;

use crate::schema::{Field, Form, Schema, Shape};

/// Makes of the members of a message what the types want: numbers that are quantities become texts, nulls in lists and maps
/// what Go puts there, and base64 loses its ends of lines.
pub(super) fn message(schema: Schema, value: &mut Value) {
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
            Form::Time | Form::MicroTime | Form::Duration | Form::RawExtension | Form::FieldsV1 | Form::Strings => {
                Value::Null
            }
        };
    }
    one(field, value);
}

fn one(field: &Field, value: &mut Value) {
    match (field.form, &*value) {
        (Form::Quantity, Value::Number(number)) => *value = Value::String(number.to_string()),
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
