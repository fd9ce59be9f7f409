//! `format()` (`cel-go/ext/formatting.go`).

use super::Context;
use super::standard::{go_double, stringified};
use crate::types::Type;
use crate::value::time::duration_text;
use crate::value::{Error, Key, Value, shown};

/// Most digits after the point: Go's formatter supports no more, and no number has them.
const MAX_PRECISION: usize = 1_000;
const DEFAULT_PRECISION: usize = 6;

/// `text.format(list)`
pub(super) fn format<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::String(pattern), Value::List(list)] = args else {
        return Err(Error::overload());
    };
    let mut out = String::new();
    let mut index = 0;
    for part in clauses(pattern)? {
        let before = out.len();
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Clause(verb, precision) => {
                let value = list
                    .get(index)
                    .ok_or_else(|| Error::new(format!("index {index} out of range")))??;
                index += 1;
                let written = clause(verb, precision, &value)
                    .map_err(|error| Error::new(format!("error during formatting: {error}")))?;
                out.push_str(&written);
            }
        }
        context.allocate(out.len() - before)?;
    }
    Ok(Value::from(out))
}

/// Returns the error in a literal format string or in the types of its literal arguments.
pub(crate) fn check_literal(pattern: &str, arguments: &[Type]) -> Option<String> {
    let parts = match clauses(pattern) {
        Ok(parts) => parts,
        Err(error) => return Some(error.to_string()),
    };
    let mut used = 0;
    for part in parts {
        let Part::Clause(verb, _) = part else {
            continue;
        };
        let Some(given) = arguments.get(used) else {
            return Some(format!("index {used} out of range"));
        };
        used += 1;
        let fits = match (verb, given) {
            (_, Type::Dyn | Type::Param(_) | Type::Var(_))
            | ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
            | ('f' | 'e', Type::Double | Type::String)
            | ('b', Type::Bool)
            | ('x' | 'X', Type::String | Type::Bytes) => true,
            ('s', other) => !matches!(other, Type::Optional(_) | Type::Opaque(_) | Type::Object(_)),
            _ => false,
        };
        if !fits {
            return Some(format!("error during formatting: {}", refusal(verb, &name_of(given))));
        }
    }
    (arguments.len() > used).then(|| {
        format!(
            "too many arguments supplied to string.format (expected {used}, got {})",
            arguments.len()
        )
    })
}

fn name_of(given: &Type) -> String {
    match given {
        Type::List(_) => "list".to_owned(),
        Type::Map(..) => "map".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::Null => "null_type".to_owned(),
        Type::Type(_) => "type".to_owned(),
        other => other.to_string(),
    }
}

enum Part<'t> {
    Text(&'t str),
    Clause(char, Option<usize>),
}

fn clauses(pattern: &str) -> Result<Vec<Part<'_>>, Error> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    while let Some(percent) = rest.find('%') {
        let (text, tail) = rest.split_at_checked(percent).unwrap_or((rest, ""));
        parts.push(Part::Text(text));
        let mut tail = tail.strip_prefix('%').unwrap_or(tail);
        if let Some(after) = tail.strip_prefix('%') {
            parts.push(Part::Text("%"));
            rest = after;
            continue;
        }
        let wrong = |message: &str| Error::new(format!("could not parse formatting clause: {message}"));
        let mut precision = None;
        if let Some(after) = tail.strip_prefix('.') {
            let length = after
                .find(|c: char| !c.is_ascii_digit())
                .ok_or_else(|| wrong("error while parsing precision: could not find end of precision specifier"))?;
            let (digits, after) = after.split_at_checked(length).unwrap_or((after, ""));
            let number: usize = digits.parse().map_err(|_form| {
                wrong(&format!(
                    "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing \
                     {digits:?}: invalid syntax"
                ))
            })?;
            if number > MAX_PRECISION {
                return Err(wrong("precision is too large"));
            }
            precision = Some(number);
            tail = after;
        }
        let verb = tail
            .chars()
            .next()
            .ok_or_else(|| Error::new("unexpected end of string"))?;
        if !"sdfeboxX".contains(verb) {
            return Err(wrong(&format!("unrecognized formatting clause \"{verb}\"")));
        }
        parts.push(Part::Clause(verb, precision));
        rest = tail.get(verb.len_utf8()..).unwrap_or_default();
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn refusal(verb: char, given: &str) -> String {
    match verb {
        's' => format!(
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and \
             timestamps, was given {given}"
        ),
        'd' => format!("decimal clause can only be used on integers, was given {given}"),
        'f' => format!("fixed-point clause can only be used on doubles, was given {given}"),
        'e' => format!("scientific clause can only be used on doubles, was given {given}"),
        'b' => format!("only integers and bools can be formatted as binary, was given {given}"),
        'o' => format!("octal clause can only be used on integers, was given {given}"),
        _ => format!("only integers, byte buffers, and strings can be formatted as hex, was given {given}"),
    }
}

fn clause(verb: char, precision: Option<usize>, value: &Value<'_>) -> Result<String, Error> {
    let precision = precision.unwrap_or(DEFAULT_PRECISION);
    let refused = || Err(Error::new(refusal(verb, value.type_name())));
    match (verb, value) {
        ('s', _) => string(value).map_or_else(refused, Ok),
        ('d', Value::Int(_) | Value::Uint(_)) => stringified(value),
        ('f' | 'e', Value::Double(number)) => Ok(float(verb, precision, *number)),
        ('f' | 'e', Value::String(text)) => match &**text {
            "NaN" => Ok("NaN".to_owned()),
            "Infinity" => Ok("∞".to_owned()),
            "-Infinity" => Ok("-∞".to_owned()),
            _ => refused(),
        },
        ('b', Value::Bool(value)) => Ok(if *value { "1" } else { "0" }.to_owned()),
        ('b', Value::Int(number)) => Ok(signed(*number, format!("{:b}", number.unsigned_abs()))),
        ('b', Value::Uint(number)) => Ok(format!("{number:b}")),
        ('o', Value::Int(number)) => Ok(signed(*number, format!("{:o}", number.unsigned_abs()))),
        ('o', Value::Uint(number)) => Ok(format!("{number:o}")),
        ('x' | 'X', _) => match hexadecimal(value) {
            Some(text) if verb == 'X' => Ok(text.to_ascii_uppercase()),
            Some(text) => Ok(text),
            None => refused(),
        },
        _ => refused(),
    }
}

fn signed(number: i64, magnitude: String) -> String {
    if number < 0 { format!("-{magnitude}") } else { magnitude }
}

fn hexadecimal(value: &Value<'_>) -> Option<String> {
    let bytes = |bytes: &[u8]| {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
    };
    match value {
        Value::Int(number) => Some(signed(*number, format!("{:x}", number.unsigned_abs()))),
        Value::Uint(number) => Some(format!("{number:x}")),
        Value::String(text) => Some(bytes(text.as_bytes())),
        Value::Bytes(data) => Some(bytes(data)),
        _ => None,
    }
}

/// Formats a number for English, as the printer of `golang.org/x/text` does.
fn float(verb: char, precision: usize, number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    if verb == 'f' {
        return grouped(&format!("{number:.precision$}"));
    }
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, magnitude) = exponent.strip_prefix('-').map_or(("", exponent), |rest| ("⁻", rest));
    let raised: String = format!("{magnitude:0>2}")
        .chars()
        .filter_map(|digit| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(usize::try_from(digit.to_digit(10)?).ok()?))
        .collect();
    format!("{digits}×10{sign}{raised}")
}

/// Inserts commas between thousands.
fn grouped(text: &str) -> String {
    let (whole, fraction) = text
        .split_once('.')
        .map_or((text, ""), |(whole, _)| (whole, text.get(whole.len()..).unwrap_or("")));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut out = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// `%s`
fn string(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::List(_) | Value::Map(_) => literal(value),
        Value::Optional(_)
        | Value::Url(_)
        | Value::Ip(_)
        | Value::Cidr(_)
        | Value::Quantity(_)
        | Value::Semver(_)
        | Value::Format(_)
        | Value::Check(_)
        | Value::Failed(_) => None,
        _ => stringified(value).ok(),
    }
}

/// Formats a value inside a list or a map like a literal.
fn literal(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::String(text) => quoted(text),
        Value::Bytes(bytes) => format!("b{}", quoted(std::str::from_utf8(bytes).ok()?)),
        Value::Double(number) if number.is_finite() => format!("{number:.DEFAULT_PRECISION$}"),
        Value::Double(number) => quoted(&go_double(*number)),
        Value::Timestamp(time) => format!("timestamp({})", quoted(&time.to_string())),
        Value::Duration(nanos) => format!("duration({})", quoted(&duration_text(*nanos))),
        Value::List(list) => {
            let items: Option<Vec<String>> = list.iter().map(|item| literal(&item.ok()?)).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for key in map.keys() {
                let name = if let Key::String(text) = &key {
                    quoted(text)
                } else {
                    shown(&key)
                };
                entries.push((name, literal(&map.get(&key)?.ok()?)?));
            }
            entries.sort();
            let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => string(other)?,
    })
}

/// Formats a quoted string.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}
