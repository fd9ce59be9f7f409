//! Values with different forms in protobuf and JSON.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::ProtobufError;
use super::wire::{Reader, Wire, Writer};

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
    Ok(Value::from(duration_text(nanoseconds)))
}

fn duration_text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let total = nanoseconds.unsigned_abs();
    let fraction = |value: u64, digits: usize, unit: &str| {
        let power = 10_u64.pow(u32::try_from(digits).unwrap_or_default());
        let text = format!("{}.{:0digits$}", value / power, value % power);
        format!("{sign}{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match total {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{total}ns"),
        1_000..1_000_000 => fraction(total, 3, "µs"),
        1_000_000..1_000_000_000 => fraction(total, 6, "ms"),
        _ => {
            let minutes = total / 60_000_000_000;
            let seconds = fraction(total % 60_000_000_000, 9, "s");
            let seconds = seconds.trim_start_matches('-');
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

/// Converts Go's text of a duration to `{1: nanoseconds}`.
pub(super) fn write_duration(text: &str, field: &'static str) -> Result<Vec<u8>, ProtobufError> {
    let nanoseconds = parse_duration(text).ok_or(ProtobufError::InvalidValue {
        field,
        what: "duration",
    })?;
    let mut message = Writer::default();
    message.varint(1, nanoseconds.cast_unsigned());
    Ok(message.0)
}

fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let mut total = 0_i64;
    while !rest.is_empty() && rest != "0" {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, behind) = rest.split_at_checked(digits)?;
        let letters = behind
            .find(|letter: char| letter.is_ascii_digit())
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(letters)?;
        let unit: i64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut part = if whole.is_empty() {
            0
        } else {
            whole.parse::<i64>().ok()?.checked_mul(unit)?
        };
        let mut scale = unit;
        for digit in fraction.bytes().map(|digit| i64::from(digit.wrapping_sub(b'0'))) {
            scale /= 10;
            part = part.checked_add(digit.checked_mul(scale)?)?;
        }
        total = total.checked_add(part)?;
        rest = behind;
    }
    Some(if negative { -total } else { total })
}

#[cfg(test)]
mod tests {
    use super::{duration_text, parse_duration};

    #[test]
    fn durations_are_written_as_go_writes_them() {
        let rows = [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (-90_000_000_000, "-1m30s"),
            (3_600_000_000_000, "1h0m0s"),
        ];
        for (nanoseconds, text) in rows {
            assert_eq!(duration_text(nanoseconds), text);
            assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
        }
        assert_eq!(parse_duration("5x"), None);
    }
}
