//! From protobuf to JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::{Reader, Wire};
use super::{Decoded, MAGIC, MAX_DEPTH, MAX_VALUES, MEDIA_TYPE, ProtobufError, forms, unknown_kind};
use crate::schema::{Alternative, Field, Form, Schema, Shape};

/// Remaining budget of a body.
pub(super) struct Budget {
    depth: usize,
    values: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            depth: MAX_DEPTH,
            values: MAX_VALUES,
        }
    }

    fn spend(&mut self) -> Result<(), ProtobufError> {
        self.values = self.values.checked_sub(1).ok_or(ProtobufError::TooMany)?;
        Ok(())
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, ProtobufError>) -> Result<T, ProtobufError> {
        self.spend()?;
        self.depth = self.depth.checked_sub(1).ok_or(ProtobufError::TooDeep)?;
        let result = inner(self);
        self.depth += 1;
        result
    }
}

/// Decodes a whole body, also one that is embedded in a list's item.
pub(super) fn body(body: &[u8], budget: &mut Budget) -> Result<Decoded, ProtobufError> {
    let unknown = body.strip_prefix(MAGIC).ok_or(ProtobufError::NotProtobuf)?;
    let (mut api_version, mut kind, mut raw) = ("", "", &[][..]);
    let (mut content_encoding, mut content_type) = ("", "");
    let mut reader = Reader(unknown);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut type_meta = Reader(bytes);
                while let Some((number, wire)) = type_meta.next()? {
                    match number {
                        1 => api_version = forms::string(wire, "apiVersion")?,
                        2 => kind = forms::string(wire, "kind")?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, wire) => content_encoding = forms::string(wire, "contentEncoding")?,
            (4, wire) => content_type = forms::string(wire, "contentType")?,
            (1 | 2, other) => {
                return Err(ProtobufError::WrongWireType {
                    wire_type: other.wire_type(),
                    field: "Unknown",
                });
            }
            _ => {}
        }
    }
    let is_json = content_type == "application/json";
    if !content_encoding.is_empty() || !(is_json || content_type.is_empty() || content_type == MEDIA_TYPE) {
        return Err(ProtobufError::UnsupportedContent {
            content_type: content_type.to_owned(),
            content_encoding: content_encoding.to_owned(),
        });
    }
    let json = if is_json {
        serde_json::from_slice(raw).map_err(|source| ProtobufError::InvalidJson { field: "raw", source })?
    } else {
        let schema = Schema::of_kind(api_version, kind).ok_or_else(|| unknown_kind(api_version, kind))?;
        let mut members = Map::new();
        members.insert("apiVersion".to_owned(), Value::from(api_version));
        members.insert("kind".to_owned(), Value::from(kind));
        message(schema, raw, &mut members, budget)?;
        Value::Object(members)
    };
    Ok(Decoded {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        json,
    })
}

fn message(
    schema: Schema,
    bytes: &[u8],
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), ProtobufError> {
    let fields = schema.fields();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        // Unknown fields are dropped, as upstream does with fields of newer versions.
        let Ok(index) = fields.binary_search_by_key(&number, |field| field.number) else {
            continue;
        };
        let Some(field) = fields.get(index) else { continue };
        match field.shape {
            Shape::One => one(field, wire, members, budget)?,
            Shape::List => item(field, wire, members, budget)?,
            Shape::Map => entry(field, wire, members, budget)?,
            Shape::Inline => {
                let (Some(schema), bytes) = (field.message(), forms::bytes(wire, field.json)?) else {
                    continue;
                };
                budget.nested(|budget| message(schema, bytes, members, budget))?;
            }
        }
    }
    Ok(())
}

/// Decodes a single value. The last one wins for scalars; messages are merged.
fn one(
    field: &Field,
    wire: Wire<'_>,
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), ProtobufError> {
    let earlier = members
        .get_mut(field.json)
        .and_then(Value::as_object_mut)
        .map(std::mem::take);
    let value = value(field, wire, earlier, budget)?;
    if value.is_null() || (field.omit_zero && is_zero(&value)) {
        members.remove(field.json);
    } else {
        members.insert(field.json.to_owned(), value);
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn item(
    field: &Field,
    wire: Wire<'_>,
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), ProtobufError> {
    let list = members.entry(field.json).or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(items) = list else { return Ok(()) };
    if let (Form::Bool | Form::Int32 | Form::Int64, Wire::Bytes(packed)) = (field.form, wire) {
        let mut packed = Reader(packed);
        while !packed.0.is_empty() {
            budget.spend()?;
            items.push(value(field, Wire::Varint(packed.varint()?), None, budget)?);
        }
        return Ok(());
    }
    budget.spend()?;
    items.push(value(field, wire, None, budget)?);
    Ok(())
}

fn entry(
    field: &Field,
    wire: Wire<'_>,
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), ProtobufError> {
    budget.spend()?;
    let mut reader = Reader(forms::bytes(wire, field.json)?);
    let (mut key, mut content) = ("", None);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => key = forms::string(wire, field.json)?,
            2 => content = Some(value(field, wire, None, budget)?),
            _ => {}
        }
    }
    let content = match content {
        Some(content) => content,
        None => absent(field, budget)?,
    };
    let map = members.entry(field.json).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(map) = map {
        map.insert(key.to_owned(), content);
    }
    Ok(())
}

/// Default value of a map's entry that has none on the wire.
fn absent(field: &Field, budget: &mut Budget) -> Result<Value, ProtobufError> {
    let wire = if matches!(field.form, Form::Bool | Form::Int32 | Form::Int64) {
        Wire::Varint(0)
    } else if field.form == Form::Double {
        Wire::Fixed64(0)
    } else {
        Wire::Bytes(&[])
    };
    value(field, wire, None, budget)
}

/// Decodes one value of a field, whatever its shape. `Null` is a time or raw JSON that is not set.
fn value(
    field: &Field,
    wire: Wire<'_>,
    earlier: Option<Map<String, Value>>,
    budget: &mut Budget,
) -> Result<Value, ProtobufError> {
    let name = field.json;
    Ok(match field.form {
        Form::String => Value::from(forms::string(wire, name)?),
        Form::Bool => Value::from(forms::varint(wire, name)? != 0),
        // An int32 has 64 bits on the wire, of which the lower half counts.
        #[expect(clippy::cast_possible_truncation, reason = "the wire format says to truncate")]
        Form::Int32 => Value::from(forms::varint(wire, name)?.cast_signed() as i32),
        Form::Int64 => Value::from(forms::varint(wire, name)?.cast_signed()),
        Form::Double => match wire {
            Wire::Fixed64(bits) => Value::from(f64::from_bits(bits)),
            Wire::Varint(_) | Wire::Fixed32 | Wire::Bytes(_) => return Err(forms::wrong(wire, name)),
        },
        Form::Bytes => Value::from(STANDARD.encode(forms::bytes(wire, name)?)),
        Form::Quantity => forms::quantity(forms::bytes(wire, name)?, name)?,
        Form::IntOrString => forms::int_or_string(forms::bytes(wire, name)?, name)?,
        Form::Time => forms::time(forms::bytes(wire, name)?, name, false)?,
        Form::MicroTime => forms::time(forms::bytes(wire, name)?, name, true)?,
        Form::Duration => forms::duration(forms::bytes(wire, name)?, name)?,
        Form::RawExtension | Form::FieldsV1 => raw(forms::bytes(wire, name)?, name, budget)?,
        Form::Strings => strings(forms::bytes(wire, name)?, name, budget)?,
        Form::Alternative(form) => alternative(form, forms::bytes(wire, name)?, name, budget)?,
        Form::Message(_) => {
            let (Some(schema), bytes) = (field.message(), forms::bytes(wire, name)?) else {
                return Ok(Value::Null);
            };
            let mut members = earlier.unwrap_or_default();
            budget.nested(|budget| message(schema, bytes, &mut members, budget))?;
            Value::Object(members)
        }
    })
}

/// Decodes embedded JSON, or an embedded body.
fn raw(bytes: &[u8], name: &'static str, budget: &mut Budget) -> Result<Value, ProtobufError> {
    let mut content = &[][..];
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            content = forms::bytes(wire, name)?;
        }
    }
    if content.is_empty() {
        Ok(Value::Null)
    } else if content.starts_with(MAGIC) {
        budget
            .nested(|budget| body(content, budget))
            .map(|decoded| decoded.json)
    } else {
        serde_json::from_slice(content).map_err(|source| ProtobufError::InvalidJson { field: name, source })
    }
}

fn strings(bytes: &[u8], name: &'static str, budget: &mut Budget) -> Result<Value, ProtobufError> {
    let mut items = Vec::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            budget.spend()?;
            items.push(Value::from(forms::string(wire, name)?));
        }
    }
    Ok(Value::Array(items))
}

/// Decodes a schema or its alternative.
fn alternative(
    form: Alternative,
    bytes: &[u8],
    name: &'static str,
    budget: &mut Budget,
) -> Result<Value, ProtobufError> {
    let (mut schema, mut others, mut allowed) = (None, Vec::new(), false);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (form, number) {
            (Alternative::Bool, 1) => allowed = forms::varint(wire, name)? != 0,
            (_, number) if number == form.number() => schema = Some(one_schema(forms::bytes(wire, name)?, budget)?),
            (Alternative::Schemas, 2) => others.push(one_schema(forms::bytes(wire, name)?, budget)?),
            (Alternative::Strings, 2) => {
                budget.spend()?;
                others.push(Value::from(forms::string(wire, name)?));
            }
            _ => {}
        }
    }
    Ok(match (form, schema) {
        (Alternative::Schemas | Alternative::Strings, _) if !others.is_empty() => Value::Array(others),
        (_, Some(schema)) => schema,
        (Alternative::Bool, None) => Value::Bool(allowed),
        (Alternative::Schemas | Alternative::Strings, None) => Value::Null,
    })
}

fn one_schema(bytes: &[u8], budget: &mut Budget) -> Result<Value, ProtobufError> {
    let mut members = Map::new();
    if let Some(schema) = Alternative::schema() {
        budget.nested(|budget| message(schema, bytes, &mut members, budget))?;
    }
    Ok(Value::Object(members))
}
