//! Meaning of plain scalars, by the rules of the YAML 1.1 library that upstream uses.

use serde_json::{Number, Value};

/// Value of a plain scalar without a tag. `None` is a number that JSON cannot represent.
pub(super) fn plain(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Some(Value::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Some(Value::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf"
        | "-.INF" => return None,
        _ => {}
    }
    if text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        let digits = text.replace('_', "");
        if let Some(number) = integer(&digits) {
            return Some(Value::Number(number));
        }
        if is_float(&digits) {
            return digits.parse().ok().and_then(from_f64).map(Value::Number);
        }
    }
    Some(Value::String(text.to_owned()))
}

/// Integers stay integers, as in upstream's JSON: `1e3` and `1.0` become `1000` and `1`.
fn from_f64(value: f64) -> Option<Number> {
    #[expect(clippy::cast_possible_truncation, reason = "the value is whole and small enough")]
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

/// Parses decimal, `0x`, `0o`, `0b`, and octal with a leading zero, like Go's `strconv.ParseInt`
/// with base zero.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        0_i64.checked_sub_unsigned(magnitude).map(Number::from)
    } else {
        Some(Number::from(magnitude))
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = unsigned
        .split_once(['e', 'E'])
        .map_or((unsigned, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        None => !mantissa.is_empty() && digits(mantissa),
        Some((whole, fraction)) => digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()),
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    mantissa_fits && exponent_fits
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::plain;

    #[test]
    fn plain_scalars_mean_what_they_mean_upstream() {
        let rows = [
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!(true)),
            ("N", json!(false)),
            ("yEs", json!("yEs")),
            ("~", Value::Null),
            ("NULL", Value::Null),
            ("nULL", json!("nULL")),
            ("1", json!(1)),
            ("-7", json!(-7)),
            ("+7", json!(7)),
            ("1_000", json!(1000)),
            ("0x1F", json!(31)),
            ("0644", json!(420)),
            ("0o644", json!(420)),
            ("0b101", json!(5)),
            ("08", json!(8)),
            ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1e3", json!(1000)),
            ("-1.5E-3", json!(-0.0015)),
            ("1.0", json!(1)),
            ("1.2.3", json!("1.2.3")),
            ("-", json!("-")),
            ("1Gi", json!("1Gi")),
            ("0x", json!("0x")),
            ("12:30:45", json!("12:30:45")),
            ("2001-12-14", json!("2001-12-14")),
            ("1e", json!("1e")),
            ("--1", json!("--1")),
            ("0-1", json!("0-1")),
            (".", json!(".")),
        ];
        for (text, value) in rows {
            assert_eq!(plain(text), Some(value), "{text}");
        }
        assert_eq!(plain(".inf"), None);
        assert_eq!(plain("1e999"), None);
    }
}
