//! Operators, conversions, sizes and time functions (`cel-go/common/stdlib/standard.go`).

use std::cmp::Ordering;

use api::duration;
use jiff::Zoned;

use super::{Context, Function};
use crate::value::time::{Timestamp, duration_text};
use crate::value::{Error, Text, Value, shown};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "!_" => not,
        "-_" => negate,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => remainder,
        "_+_" => add_operator,
        "_==_" => |_, args| two(args, |left, right| Ok(Value::Bool(left.equals(right)))),
        "_!=_" => |_, args| two(args, |left, right| Ok(Value::Bool(!left.equals(right)))),
        "_<_" => |_, args| ordered(args, Ordering::is_lt),
        "_<=_" => |_, args| ordered(args, Ordering::is_le),
        "_>_" => |_, args| ordered(args, Ordering::is_gt),
        "_>=_" => |_, args| ordered(args, Ordering::is_ge),
        "_[_]" => |_, args| two(args, index),
        "_[?_]" => |_, args| two(args, optional_index),
        "@in" => |_, args| two(args, contained),
        "size" => size,
        "type" => type_of,
        "dyn" => |_, args| one(args, |value| Ok(value.clone())),
        "bool" => to_bool,
        "bytes" => to_bytes,
        "double" => to_double,
        "duration" => to_duration,
        "int" => to_int,
        "string" => to_string,
        "timestamp" => to_timestamp,
        "uint" => to_uint,
        "getFullYear" => |_, args| clock(args, |time| time.year().into()),
        "getMonth" => |_, args| clock(args, |time| i64::from(time.month()) - 1),
        "getDayOfYear" => |_, args| clock(args, |time| i64::from(time.day_of_year()) - 1),
        "getDayOfMonth" => |_, args| clock(args, |time| i64::from(time.day()) - 1),
        "getDate" => |_, args| clock(args, |time| time.day().into()),
        "getDayOfWeek" => |_, args| clock(args, |time| time.weekday().to_sunday_zero_offset().into()),
        "getHours" => |_, args| span(args, 3_600_000_000_000, |time| time.hour().into()),
        "getMinutes" => |_, args| span(args, 60_000_000_000, |time| time.minute().into()),
        "getSeconds" => |_, args| span(args, 1_000_000_000, |time| time.second().into()),
        "getMilliseconds" => milliseconds,
        _ => return None,
    })
}

pub(super) fn one<'a>(
    args: &[Value<'a>],
    run: impl FnOnce(&Value<'a>) -> Result<Value<'a>, Error>,
) -> Result<Value<'a>, Error> {
    match args {
        [value] => run(value),
        _ => Err(Error::overload()),
    }
}

pub(super) fn two<'a>(
    args: &[Value<'a>],
    run: impl FnOnce(&Value<'a>, &Value<'a>) -> Result<Value<'a>, Error>,
) -> Result<Value<'a>, Error> {
    match args {
        [left, right] => run(left, right),
        _ => Err(Error::overload()),
    }
}

fn ordered<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>, Error> {
    two(args, |left, right| {
        left.compare(right).map(|order| Value::Bool(holds(order)))
    })
}

const INT_OVERFLOW: Error = Error::Evaluation {
    message: std::borrow::Cow::Borrowed("integer overflow"),
};
const UINT_OVERFLOW: Error = Error::Evaluation {
    message: std::borrow::Cow::Borrowed("unsigned integer overflow"),
};

fn int<'a>(value: Option<i64>) -> Result<Value<'a>, Error> {
    value.map(Value::Int).ok_or(INT_OVERFLOW)
}

fn uint<'a>(value: Option<u64>) -> Result<Value<'a>, Error> {
    value.map(Value::Uint).ok_or(UINT_OVERFLOW)
}

fn not<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => Err(Error::overload()),
    }
}

fn negate<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Int(value)] => int(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        [Value::Duration(value)] => value
            .checked_neg()
            .map(Value::Duration)
            .ok_or_else(|| Error::new("duration overflow")),
        _ => Err(Error::overload()),
    }
}

fn duration<'a>(nanos: Option<i64>) -> Result<Value<'a>, Error> {
    nanos
        .map(Value::Duration)
        .ok_or_else(|| Error::new("duration overflow"))
}

fn add_operator<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [left, right] => add(context, left.clone(), right),
        _ => Err(Error::overload()),
    }
}

/// Adds two values. A list on the left without other references grows in place.
pub(crate) fn add<'a>(context: &mut Context<'_>, left: Value<'a>, right: &Value<'a>) -> Result<Value<'a>, Error> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => int(left.checked_add(*right)),
        (Value::Uint(left), Value::Uint(right)) => uint(left.checked_add(*right)),
        (Value::Double(left), Value::Double(right)) => Ok(Value::Double(left + right)),
        (Value::String(left), Value::String(right)) => {
            context.allocate(left.len() + right.len())?;
            Ok(Value::from([&*left, &**right].concat()))
        }
        (Value::Bytes(left), Value::Bytes(right)) => {
            context.allocate(left.len() + right.len())?;
            Ok(Value::Bytes([&*left, &**right].concat().into()))
        }
        (Value::List(left), Value::List(right)) => {
            // A fold appends to its own list: only the new items are charged.
            context.allocate(right.len().saturating_mul(size_of::<Value<'_>>()))?;
            left.join(right).map(Value::List)
        }
        (Value::Duration(left), Value::Duration(right)) => duration(left.checked_add(*right)),
        (Value::Timestamp(left), Value::Duration(right)) => left.plus(*right).map(Value::Timestamp),
        (Value::Duration(left), Value::Timestamp(right)) => right.plus(left).map(Value::Timestamp),
        _ => Err(Error::overload()),
    }
}

fn subtract<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Int(left), Value::Int(right)] => int(left.checked_sub(*right)),
        [Value::Uint(left), Value::Uint(right)] => uint(left.checked_sub(*right)),
        [Value::Double(left), Value::Double(right)] => Ok(Value::Double(left - right)),
        [Value::Duration(left), Value::Duration(right)] => duration(left.checked_sub(*right)),
        [Value::Timestamp(left), Value::Timestamp(right)] => left.since(*right).map(Value::Duration),
        [Value::Timestamp(left), Value::Duration(right)] => match right.checked_neg() {
            Some(back) => left.plus(back).map(Value::Timestamp),
            None => Err(Error::new("timestamp overflow")),
        },
        _ => Err(Error::overload()),
    }
}

fn multiply<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Int(left), Value::Int(right)] => int(left.checked_mul(*right)),
        [Value::Uint(left), Value::Uint(right)] => uint(left.checked_mul(*right)),
        [Value::Double(left), Value::Double(right)] => Ok(Value::Double(left * right)),
        _ => Err(Error::overload()),
    }
}

fn divide<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => Err(Error::new("division by zero")),
        [Value::Int(left), Value::Int(right)] => int(left.checked_div(*right)),
        [Value::Uint(left), Value::Uint(right)] => uint(left.checked_div(*right)),
        [Value::Double(left), Value::Double(right)] => Ok(Value::Double(left / right)),
        _ => Err(Error::overload()),
    }
}

fn remainder<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => Err(Error::new("modulus by zero")),
        [Value::Int(left), Value::Int(right)] => int(left.checked_rem(*right)),
        [Value::Uint(left), Value::Uint(right)] => uint(left.checked_rem(*right)),
        _ => Err(Error::overload()),
    }
}

fn index<'a>(of: &Value<'a>, at: &Value<'a>) -> Result<Value<'a>, Error> {
    match (of, at) {
        (Value::List(list), _) => {
            let number = match at {
                Value::Int(number) => Some(*number),
                Value::Uint(number) => i64::try_from(*number).ok(),
                Value::Double(number) => crate::value::whole(*number),
                _ => return Err(Error::overload()),
            };
            let found = number
                .and_then(|number| usize::try_from(number).ok())
                .and_then(|number| list.get(number));
            found.unwrap_or_else(|| {
                Err(Error::new(format!(
                    "index out of bounds: {}",
                    number.unwrap_or_default()
                )))
            })
        }
        (Value::Map(map), _) => {
            let key = at.to_key().ok_or_else(Error::overload)?;
            map.get(&key)
                .unwrap_or_else(|| Err(Error::new(format!("no such key: {}", shown(&key)))))
        }
        // What follows `[?…]` is optional, too (`applyQualifiers` in `cel-go/interpreter/attributes.go`).
        (Value::Optional(_), _) => optional_index(of, at),
        _ => Err(Error::overload()),
    }
}

/// `of[?at]`: the element, if it exists; absent for an absent operand.
fn optional_index<'a>(of: &Value<'a>, at: &Value<'a>) -> Result<Value<'a>, Error> {
    match of {
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(content)) => optional_index(content, at),
        Value::List(list) => {
            let index = at.to_key().ok_or_else(Error::overload)?;
            let place = match index.to_value() {
                Value::Int(number) => usize::try_from(number).ok(),
                Value::Uint(number) => usize::try_from(number).ok(),
                _ => return Err(Error::overload()),
            };
            let found = place.and_then(|place| list.get(place)).transpose()?;
            Ok(found.map_or(Value::Optional(None), Value::some))
        }
        Value::Map(map) => {
            let found = at.to_key().and_then(|key| map.get(&key)).transpose()?;
            Ok(found.map_or(Value::Optional(None), Value::some))
        }
        _ => Err(Error::overload()),
    }
}

fn contained<'a>(item: &Value<'a>, within: &Value<'a>) -> Result<Value<'a>, Error> {
    match within {
        Value::List(list) => {
            for other in list.iter() {
                if item.equals(&other?) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Map(map) => Ok(Value::Bool(item.to_key().is_some_and(|key| map.get(&key).is_some()))),
        _ => Err(Error::overload()),
    }
}

fn size<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::String(text)] => Ok(Value::length(text.chars().count())),
        [Value::Bytes(bytes)] => Ok(Value::length(bytes.len())),
        [Value::List(list)] => Ok(Value::length(list.len())),
        [Value::Map(map)] => Ok(Value::length(map.len())),
        _ => Err(Error::overload()),
    }
}

fn type_of<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| Ok(Value::Type(Text::Shared(value.type_name().into()))))
}

fn unconvertible(value: &Value<'_>, to: &str) -> Error {
    Error::new(format!("type conversion error from '{}' to '{to}'", value.type_name()))
}

fn to_bool<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(unconvertible(value, "bool")),
        },
        _ => Err(Error::overload()),
    })
}

fn to_bytes<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Bytes(bytes) => Ok(Value::Bytes(bytes.clone())),
        Value::String(text) => {
            context.allocate(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => Err(Error::overload()),
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the conversion of the language: the nearest floating-point number"
)]
fn to_double<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Double(number) => Ok(Value::Double(*number)),
        Value::Int(number) => Ok(Value::Double(*number as f64)),
        Value::Uint(number) => Ok(Value::Double(*number as f64)),
        Value::String(text) => go_float(text)
            .map(Value::Double)
            .ok_or_else(|| unconvertible(value, "double")),
        _ => Err(Error::overload()),
    })
}

/// Parses a number like `strconv.ParseFloat`, apart from hexadecimal ones.
fn go_float(text: &str) -> Option<f64> {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let special = ["inf", "infinity", "nan"].contains(&bare.to_ascii_lowercase().as_str());
    let value: f64 = text.parse().ok()?;
    (special || value.is_finite()).then_some(value)
}

fn to_duration<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Duration(nanos) | Value::Int(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => duration::parse(text)
            .map(Value::Duration)
            .map_err(|_unread| unconvertible(value, "google.protobuf.Duration")),
        _ => Err(Error::overload()),
    })
}

/// The integer part of a number, if it fits (`cel-go/common/types/overflow.go`).
fn truncated(value: f64) -> Option<i128> {
    if !value.is_finite() || value.abs() >= 18_446_744_073_709_551_616.0 {
        return None;
    }
    format!("{:.0}", value.trunc()).parse().ok()
}

fn to_int<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Int(number) => Ok(Value::Int(*number)),
        Value::Uint(number) => int(i64::try_from(*number).ok()),
        Value::Double(number) if number.abs() >= 9_223_372_036_854_775_807.0 => Err(INT_OVERFLOW),
        Value::Double(number) => int(truncated(*number).and_then(|number| i64::try_from(number).ok())),
        Value::String(text) => go_int(text).map(Value::Int).ok_or_else(|| unconvertible(value, "int")),
        Value::Timestamp(time) => Ok(Value::Int(
            time.at.as_second() - i64::from(time.at.subsec_nanosecond() < 0),
        )),
        Value::Duration(nanos) => Ok(Value::Int(*nanos)),
        _ => Err(Error::overload()),
    })
}

fn go_int(text: &str) -> Option<i64> {
    text.parse().ok()
}

fn to_uint<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Uint(number) => Ok(Value::Uint(*number)),
        Value::Int(number) => uint(u64::try_from(*number).ok()),
        Value::Double(number) => uint(truncated(*number).and_then(|number| u64::try_from(number).ok())),
        Value::String(text) => text
            .parse()
            .ok()
            .filter(|_| !text.starts_with('+'))
            .map(Value::Uint)
            .ok_or_else(|| unconvertible(value, "uint")),
        _ => Err(Error::overload()),
    })
}

pub(super) fn to_string<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| {
        if let Value::String(text) = value {
            return Ok(Value::String(text.clone()));
        }
        let text = stringified(value)?;
        context.text(text)
    })
}

/// Converts a value with `string()`.
pub(super) fn stringified(value: &Value<'_>) -> Result<String, Error> {
    Ok(match value {
        Value::String(text) => (**text).to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => go_double(*number),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_form| Error::new("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Value::Timestamp(time) => time.to_string(),
        Value::Duration(nanos) => duration_text(*nanos),
        Value::Type(name) => (**name).to_owned(),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        _ => return Err(Error::overload()),
    })
}

/// Formats a number like Go's `%g`: with the shortest digits that parse back to it.
pub(super) fn go_double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn to_timestamp<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Timestamp(time) => Ok(Value::Timestamp(*time)),
        Value::Int(seconds) => Timestamp::from_seconds(*seconds).map(Value::Timestamp),
        Value::String(text) => Timestamp::parse(text)
            .map(Value::Timestamp)
            .ok_or_else(|| unconvertible(value, "google.protobuf.Timestamp")),
        _ => Err(Error::overload()),
    })
}

fn clock<'a>(args: &[Value<'a>], read: impl FnOnce(&Zoned) -> i64) -> Result<Value<'a>, Error> {
    match args {
        [Value::Timestamp(time)] => Ok(Value::Int(read(&time.on_clocks_of("")?))),
        [Value::Timestamp(time), Value::String(zone)] => Ok(Value::Int(read(&time.on_clocks_of(zone)?))),
        _ => Err(Error::overload()),
    }
}

fn span<'a>(args: &[Value<'a>], unit: i64, read: impl FnOnce(&Zoned) -> i64) -> Result<Value<'a>, Error> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / unit)),
        _ => clock(args, read),
    }
}

fn milliseconds<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000)),
        _ => clock(args, |time| i64::from(time.subsec_nanosecond()) / 1_000_000),
    }
}
