//! From JSON to protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::Writer;
use super::{MAGIC, MAX_DEPTH, ProtobufError, forms, unknown_kind};
use crate::schema::{Field, Form, Schema, Shape};

pub(super) fn body(api_version: &str, kind: &str, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let schema = Schema::of_kind(api_version, kind).ok_or_else(|| unknown_kind(api_version, kind))?;
    let members = object.as_object().ok_or(ProtobufError::InvalidValue {
        field: "object",
        what: "object",
    })?;
    let mut type_meta = Writer::default();
    type_meta.bytes(1, api_version.as_bytes());
    type_meta.bytes(2, kind.as_bytes());
    let mut unknown = Writer(MAGIC.to_vec());
    unknown.bytes(1, &type_meta.0);
    unknown.bytes(2, &message(schema, members, MAX_DEPTH)?);
    // Upstream writes these two even when they are empty.
    unknown.bytes(3, b"");
    unknown.bytes(4, b"");
    Ok(unknown.0)
}

fn message(schema: Schema, members: &Map<String, Value>, depth: usize) -> Result<Vec<u8>, ProtobufError> {
    let depth = depth.checked_sub(1).ok_or(ProtobufError::TooDeep)?;
    let mut writer = Writer::default();
    for field in schema.fields() {
        if field.shape == Shape::Inline {
            if let Some(schema) = field.message() {
                writer.bytes(field.number, &message(schema, members, depth)?);
            }
            continue;
        }
        let Some(value) = members.get(field.json).filter(|value| !value.is_null()) else {
            continue;
        };
        match (field.shape, value) {
            (Shape::One | Shape::Inline, value) => one(&mut writer, field.number, field, value, depth)?,
            (Shape::List, Value::Array(items)) => {
                items
                    .iter()
                    .try_for_each(|item| one(&mut writer, field.number, field, item, depth))?;
            }
            (Shape::Map, Value::Object(entries)) => {
                for (key, value) in entries {
                    let mut entry = Writer::default();
                    entry.bytes(1, key.as_bytes());
                    one(&mut entry, 2, field, value, depth)?;
                    writer.bytes(field.number, &entry.0);
                }
            }
            (Shape::List, _) => return Err(invalid(field, "list")),
            (Shape::Map, _) => return Err(invalid(field, "map")),
        }
    }
    Ok(writer.0)
}

fn invalid(field: &Field, what: &'static str) -> ProtobufError {
    ProtobufError::InvalidValue {
        field: field.json,
        what,
    }
}

fn one(writer: &mut Writer, number: u32, field: &Field, value: &Value, depth: usize) -> Result<(), ProtobufError> {
    let name = field.json;
    let text = || value.as_str().ok_or_else(|| invalid(field, "string"));
    let int = || {
        value
            .as_i64()
            .map(i64::cast_unsigned)
            .ok_or_else(|| invalid(field, "number"))
    };
    match field.form {
        Form::String => writer.bytes(number, text()?.as_bytes()),
        Form::Bool => writer.varint(
            number,
            u64::from(value.as_bool().ok_or_else(|| invalid(field, "boolean"))?),
        ),
        Form::Int32 | Form::Int64 => writer.varint(number, int()?),
        Form::Double => writer.fixed64(
            number,
            value.as_f64().ok_or_else(|| invalid(field, "number"))?.to_bits(),
        ),
        Form::Bytes => writer.bytes(
            number,
            &STANDARD.decode(text()?).map_err(|_invalid| invalid(field, "base64"))?,
        ),
        Form::Quantity => {
            let mut quantity = Writer::default();
            // A bare number is a quantity too.
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            quantity.bytes(1, text.as_bytes());
            writer.bytes(number, &quantity.0);
        }
        Form::IntOrString => {
            let text = value.as_str();
            let mut either = Writer::default();
            either.varint(1, u64::from(text.is_some()));
            either.varint(2, if text.is_some() { 0 } else { int()? });
            either.bytes(3, text.unwrap_or_default().as_bytes());
            writer.bytes(number, &either.0);
        }

        Form::Time => writer.bytes(number, &forms::write_time(text()?, name, false)?),
        Form::MicroTime => writer.bytes(number, &forms::write_time(text()?, name, true)?),
        Form::Duration => writer.bytes(number, &forms::write_duration(text()?, name)?),
        Form::RawExtension | Form::FieldsV1 => {
            let mut raw = Writer::default();
            raw.bytes(1, value.to_string().as_bytes());
            writer.bytes(number, &raw.0);
        }
        Form::Strings => {
            let mut strings = Writer::default();
            for item in value.as_array().ok_or_else(|| invalid(field, "list"))? {
                strings.bytes(1, item.as_str().ok_or_else(|| invalid(field, "string"))?.as_bytes());
            }
            writer.bytes(number, &strings.0);
        }
        Form::Message(_) => {
            let members = value.as_object().ok_or_else(|| invalid(field, "object"))?;
            let Some(schema) = field.message() else { return Ok(()) };
            writer.bytes(number, &message(schema, members, depth)?);
        }
    }
    Ok(())
}
