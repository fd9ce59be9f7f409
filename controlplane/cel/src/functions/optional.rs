//! Optional values (`cel-go/cel/library.go`).

use super::Function;
use super::standard::one;
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "optional.of" => |_, args| one(args, |value| Ok(Value::some(value.clone()))),
        "optional.ofNonZeroValue" => |_, args| {
            one(args, |value| {
                Ok(if zero(value) {
                    Value::Optional(None)
                } else {
                    Value::some(value.clone())
                })
            })
        },
        "optional.none" => |_, _| Ok(Value::Optional(None)),
        "hasValue" => |_, args| {
            one(args, |value| {
                content(value).map(|content| Value::Bool(content.is_some()))
            })
        },
        "value" => |_, args| {
            one(args, |value| {
                content(value)?
                    .cloned()
                    .ok_or_else(|| Error::new("optional.none() dereference"))
            })
        },
        "optional.unwrap" | "unwrapOpt" => |_, args| match args {
            [Value::List(list)] => {
                let mut found = Vec::new();
                for item in list.iter() {
                    found.extend(content(&item?)?.cloned());
                }
                Ok(Value::from(found))
            }
            _ => Err(Error::overload()),
        },
        "first" => |_, args| end(args, false),
        "last" => |_, args| end(args, true),
        _ => return None,
    })
}

fn content<'v, 'a>(value: &'v Value<'a>) -> Result<Option<&'v Value<'a>>, Error> {
    match value {
        Value::Optional(content) => Ok(content.as_deref()),
        _ => Err(Error::overload()),
    }
}

fn zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(number) => *number == 0,
        Value::Uint(number) => *number == 0,
        Value::Double(number) => number.abs() < f64::MIN_POSITIVE && !number.is_nan(),
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Duration(nanos) => *nanos == 0,
        Value::Timestamp(time) => time.is_zero(),
        _ => false,
    }
}

fn end<'a>(args: &[Value<'a>], from_back: bool) -> Result<Value<'a>, Error> {
    let [Value::List(list)] = args else {
        return Err(Error::overload());
    };
    let index = if from_back { list.len().saturating_sub(1) } else { 0 };
    list.get(index)
        .transpose()
        .map(|found| found.map_or(Value::Optional(None), Value::some))
}
