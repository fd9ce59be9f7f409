//! Values with different forms in protobuf and JSON.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::ProtobufError;
use super::wire::{Reader, Wire, Writer};
use crate::value::duration as go_duration;

pub(super) fn wrong(wire: Wire<'_>, field: &'static str) -> ProtobufError {
    ProtobufError::WrongWireType {
        wire_type: wire.wire_type(),
        field,
    }
}

pub(super) fn bytes<'b>(wire: Wire<'b>, field: &'static str) -> Result<&'b [u8], ProtobufError> {
    match wire {
        Wire::Bytes(bytes) => Ok(bytes),
        Wire::Varint(_) | Wire::Fixed64(_) | Wire::Fixed32 => Err(wrong(wire, field)),
    }
}

pub(super) fn varint(wire: Wire<'_>, field: &'static str) -> Result<u64, ProtobufError> {
    match wire {
        Wire::Varint(value) => Ok(value),
        Wire::Bytes(_) | Wire::Fixed64(_) | Wire::Fixed32 => Err(wrong(wire, field)),
    }
}

pub(super) fn string<'b>(wire: Wire<'b>, field: &'static str) -> Result<&'b str, ProtobufError> {
    std::str::from_utf8(bytes(wire, field)?).map_err(|_invalid| ProtobufError::InvalidUtf8(field))
}

/// Converts `{1: text}` to the text.
pub(super) fn quantity(message: &[u8], field: &'static str) -> Result<Value, ProtobufError> {
    let mut text = "0";
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            text = string(wire, field)?;
        }
    }
    Ok(Value::from(if text.is_empty() { "0" } else { text }))
}

/// Converts `{1: 0 or 1, 2: number, 3: text}` to the number or the text.
#[expect(clippy::cast_possible_truncation, reason = "an int32 stands on the wire as 64 bits")]
pub(super) fn int_or_string(message: &[u8], field: &'static str) -> Result<Value, ProtobufError> {
    let (mut kind, mut int, mut text) = (0, 0, "");
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => kind = varint(wire, field)?,
            2 => int = varint(wire, field)?.cast_signed() as i32,
            3 => text = string(wire, field)?,
            _ => {}
        }
    }
    match kind {
        0 => Ok(Value::from(int)),
        1 => Ok(Value::from(text)),
        _ => Err(ProtobufError::InvalidValue {
            field,
            what: "type of an int-or-string",
        }),
    }
}

/// Writes a number or a text as `{1: 0 or 1, 2: number, 3: text}`.
pub(super) fn write_int_or_string(out: &mut Writer, number: u32, int: i64, text: Option<&str>) {
    let mut either = Writer::default();
    either.varint(1, u64::from(text.is_some()));
    either.varint(2, int.cast_unsigned());
    either.bytes(3, text.unwrap_or_default().as_bytes());
    out.bytes(number, &either.0);
}

/// Converts `{1: seconds, 2: nanoseconds}` to RFC 3339; an empty message is an unset time. Without
/// `micro` the fraction is dropped, as upstream does.
#[expect(clippy::cast_possible_truncation, reason = "an int32 stands on the wire as 64 bits")]
pub(super) fn time(message: &[u8], field: &'static str, micro: bool) -> Result<Value, ProtobufError> {
    if message.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => seconds = varint(wire, field)?.cast_signed(),
            2 => nanoseconds = varint(wire, field)?.cast_signed() as i32,
            _ => {}
        }
    }
    let invalid = |_range| ProtobufError::InvalidValue { field, what: "time" };
    Ok(Value::from(if micro {
        let micros = nanoseconds / 1000 * 1000;
        format!("{:.6}", Timestamp::new(seconds, micros).map_err(invalid)?)
    } else {
        Timestamp::from_second(seconds).map_err(invalid)?.to_string()
    }))
}

/// Converts RFC 3339 to `{1: seconds, 2: nanoseconds}`.
pub(super) fn write_time(text: &str, field: &'static str, micro: bool) -> Result<Vec<u8>, ProtobufError> {
    let time: Timestamp = text
        .parse()
        .map_err(|_parse| ProtobufError::InvalidValue { field, what: "time" })?;
    let nanoseconds = time.as_nanosecond();
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or_default();
    let fraction = u64::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default();
    let mut message = Writer::default();
    message.varint(1, seconds.cast_unsigned());
    message.varint(2, if micro { fraction / 1000 * 1000 } else { 0 });
    Ok(message.0)
}

/// Converts `{1: nanoseconds}` to Go's text: `1h2m3.5s`.
pub(super) fn duration(message: &[u8], field: &'static str) -> Result<Value, ProtobufError> {
    let mut nanoseconds = 0;
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            nanoseconds = varint(wire, field)?.cast_signed();
        }
    }
    Ok(Value::from(go_duration::text(nanoseconds)))
}

/// Converts Go's text of a duration to `{1: nanoseconds}`.
pub(super) fn write_duration(text: &str, field: &'static str) -> Result<Vec<u8>, ProtobufError> {
    let invalid = |_unread| ProtobufError::InvalidValue {
        field,
        what: "duration",
    };
    let nanoseconds = go_duration::parse(text).map_err(invalid)?;
    let mut message = Writer::default();
    message.varint(1, nanoseconds.cast_unsigned());
    Ok(message.0)
}
