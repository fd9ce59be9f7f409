//! Formatting of values in errors, as upstream.

use serde_json::Value;

use crate::Invalid;

/// A string quoted like Go's `%q`.
pub(crate) fn quoted(text: &str) -> String {
    Invalid::value("", text, "").value.unwrap_or_default()
}

/// A number formatted with `%v`.
pub(crate) fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..21).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => plain_float(number),
    }
}

/// A number with all its digits.
pub(crate) fn plain_float(number: f64) -> String {
    format!("{number}")
}

/// A value as `json.Marshal` writes it.
pub(crate) fn json(value: &Value) -> String {
    Invalid::marshaled(&value.to_string())
}

/// The bad value of an error.
pub(crate) fn value(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return quoted(text);
    }
    let float_of = value.as_f64().filter(|_| value.as_i64().is_none());
    float_of.map_or_else(|| json(value), float)
}
