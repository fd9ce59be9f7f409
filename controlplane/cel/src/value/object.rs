//! Patch objects that expressions construct: `Object{…}`, whose type names follow the field path,
//! as `Object.spec.template{…}`, and `JSONPatch{…}` (`k8s.io/apiserver/pkg/cel/mutation`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::{Error, Value, shown};
use crate::types::Type;

/// Deepest nesting of an object that is converted to JSON.
const MAX_LEVELS: usize = 500;

/// Most bytes of JSON that one evaluation's values may become: shared parts count each time.
pub const JSON_BYTES: usize = 4 << 20;

const PATCH: &str = "JSONPatch";

/// The type with this name.
pub(crate) fn named(name: &str) -> Option<Type> {
    let is_known = name == PATCH || name == "Object" || name.starts_with("Object.");
    is_known.then(|| Type::Struct(name.into()))
}

/// Type of a field: objects may have any fields, patches have four.
pub(crate) fn field(of: &str, name: &str) -> Option<Type> {
    match name {
        _ if of != PATCH => Some(Type::Dyn),
        "op" | "path" | "from" => Some(Type::String),
        "value" => Some(Type::Dyn),
        _ => None,
    }
}

/// An object that an expression constructed.
#[derive(Debug)]
pub struct Object<'a> {
    name: Arc<str>,
    fields: BTreeMap<Arc<str>, Value<'a>>,
    all: u64,
}

impl<'a> Object<'a> {
    pub(crate) fn new(name: &str, fields: BTreeMap<Arc<str>, Value<'a>>) -> Result<Self, Error> {
        if name == PATCH {
            for (field, value) in fields.iter().filter(|(field, _)| &***field != "value") {
                if value.as_str().is_none() {
                    let given = go_type(value);
                    let error = format!("unexpected type {given} for JSONPatchType '{field}' field");
                    return Err(Error::new(error));
                }
            }
        }
        let all = fields.values().map(Value::all).fold(0, u64::saturating_add);
        let all = super::json::bounded(all)?;
        let name = name.into();
        Ok(Self { name, fields, all })
    }

    /// The name of its type.
    pub fn type_name(&self) -> &str {
        &self.name
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&Value<'a>> {
        self.fields.get(name)
    }

    pub(crate) fn is_patch(&self) -> bool {
        &*self.name == PATCH
    }

    /// A field of a patch: an absent string is empty.
    pub(crate) fn part(&self, name: &str) -> Result<Value<'a>, Error> {
        match self.field(name) {
            Some(value) => Ok(value.clone()),
            None if name == "value" => Err(Error::new("no such key: value")),
            None => Ok(Value::from("")),
        }
    }

    /// True if a patch has a field.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.field(name)
            .is_some_and(|value| name == "value" || value.as_str() != Some(""))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && !self.is_patch()
    }

    pub(crate) const fn all(&self) -> u64 {
        self.all
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        // In a patch an absent string equals an empty one.
        let is_said = |own: &Self, value: &Value<'_>| !own.is_patch() || value.as_str() != Some("");
        let within = |left: &Self, right: &Self| {
            left.fields
                .iter()
                .filter(|(_, value)| is_said(left, value))
                .all(|(name, value)| right.field(name).is_some_and(|other| value.equals(other)))
        };
        self.name == other.name && within(self, other) && within(other, self)
    }

    /// Reports nested objects whose type names do not match their field paths
    /// (`CheckTypeNamesMatchFieldPathNames` of
    /// `k8s.io/apiserver/pkg/cel/mutation/dynamic/objects.go`).
    pub fn misnamed(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.compare_names(&self.name, &mut found);
        found
    }

    fn compare_names(&self, path: &str, found: &mut Vec<String>) {
        let name = &*self.name;
        if name != path {
            found.push(format!(
                "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
            ));
        }
        for (field, value) in &self.fields {
            compare_names(value, &format!("{path}.{field}"), found);
        }
    }

    /// Converts the object to JSON; `left` is the number of bytes that are left, initially
    /// [`JSON_BYTES`].
    ///
    /// # Errors
    /// The object has values that JSON cannot represent, or is too large.
    pub fn to_json(&self, left: &mut usize) -> Result<Json, Error> {
        self.json(MAX_LEVELS, left)
    }

    fn json(&self, levels: usize, left: &mut usize) -> Result<Json, Error> {
        let members = self.fields.iter().map(|(name, value)| {
            take(left, name.len())?;
            let member = json(value, levels, left)?;
            Ok((name.to_string(), member))
        });
        members.collect::<Result<_, Error>>().map(Json::Object)
    }
}

fn compare_names(value: &Value<'_>, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.compare_names(path, found),
        // Lists and maps have no type names. Those from the request contain no constructed objects.
        Value::List(list) if list.is_made() => {
            list.iter()
                .filter_map(Result::ok)
                .for_each(|item| compare_names(&item, path, found));
        }
        Value::Map(map) if map.is_made() => {
            for key in map.keys() {
                if let Some(Ok(value)) = map.get(&key) {
                    compare_names(&value, path, found);
                }
            }
        }
        _ => {}
    }
}

impl Value<'_> {
    /// Converts the value to JSON; `left` is the number of bytes that are left, initially
    /// [`JSON_BYTES`].
    ///
    /// # Errors
    /// The value cannot be represented in JSON, or is too large.
    pub fn to_json(&self, left: &mut usize) -> Result<Json, Error> {
        json(self, MAX_LEVELS, left)
    }
}

fn take(left: &mut usize, bytes: usize) -> Result<(), Error> {
    let rest = left.checked_sub(bytes);
    *left = rest.ok_or_else(|| Error::new(format!("the value has more than {JSON_BYTES} bytes as JSON")))?;
    Ok(())
}

/// Converts a value to JSON like `cel-go` (`ConvertToNative` of its types to `structpb.Value`).
fn json(value: &Value<'_>, levels: usize, left: &mut usize) -> Result<Json, Error> {
    // Numbers and punctuation, approximately.
    take(left, 8)?;
    let Some(levels) = levels.checked_sub(1) else {
        return Err(Error::new("the value is nested too deeply"));
    };
    Ok(match value {
        Value::Null | Value::Optional(None) => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Double(value) => match super::whole(*value) {
            Some(whole) => whole.into(),
            None => (*value).into(),
        },
        Value::String(text) | Value::Type(text) => {
            take(left, text.len())?;
            (**text).into()
        }
        Value::Bytes(bytes) => {
            take(left, bytes.len())?;
            STANDARD.encode(bytes).into()
        }
        Value::List(list) => {
            let items = list.iter().map(|item| json(&item?, levels, left));
            items.collect::<Result<_, _>>().map(Json::Array)?
        }
        Value::Map(map) => {
            let members = map.keys().into_iter().filter_map(|key| {
                let value = map.get(&key)?;
                Some(value.and_then(|value| {
                    let key = shown(&key);
                    take(left, key.len())?;
                    Ok((key, json(&value, levels, left)?))
                }))
            });
            members.collect::<Result<_, _>>().map(Json::Object)?
        }
        Value::Object(object) => object.json(levels, left)?,
        Value::Timestamp(time) => time.to_string().into(),
        Value::Duration(nanos) => super::time::duration_text(*nanos).into(),
        Value::Optional(Some(content)) => json(content, levels, left)?,
        other => {
            return Err(Error::new(format!(
                "type conversion error from '{}' to 'google.protobuf.Value'",
                other.type_name()
            )));
        }
    })
}

/// Go type of a value, as shown in messages.
fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "structpb.NullValue",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Uint(_) => "uint64",
        Value::Double(_) => "float64",
        Value::Bytes(_) => "[]uint8",
        Value::List(_) => "[]ref.Val",
        Value::Map(_) => "map[ref.Val]ref.Val",
        Value::Object(_) => "map[string]interface {}",
        _ => "ref.Val",
    }
}
