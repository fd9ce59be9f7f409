//! Values of string, bytes and number literals (`cel-go/parser/unescape.go`).

use std::sync::Arc;

use crate::value::Value;

pub(crate) fn int(text: &str, negative: bool) -> Option<Value<'static>> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    let value = i128::from(magnitude);
    i64::try_from(if negative { -value } else { value })
        .ok()
        .map(Value::Int)
}

pub(crate) fn uint(text: &str) -> Option<Value<'static>> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .ok()
    .map(Value::Uint)
}

pub(crate) fn float(text: &str, negative: bool) -> Option<Value<'static>> {
    let value: f64 = text.parse().ok()?;
    value
        .is_finite()
        .then_some(Value::Double(if negative { -value } else { value }))
}

/// Parses a string or bytes literal with its quotes and prefix.
pub(crate) fn string(text: &str, bytes: bool) -> Option<Value<'static>> {
    let quote = text.find(['"', '\''])?;
    let raw = text.get(..quote)?.contains(['r', 'R']);
    let body = text.get(quote..)?;
    let mark = body.get(..1)?;
    let width = if body.len() >= 6 && body.starts_with(&mark.repeat(3)) {
        3
    } else {
        1
    };
    let inner = body.get(width..body.len().checked_sub(width)?)?;
    let inner = inner.replace("\r\n", "\n").replace('\r', "\n");
    let value = if raw {
        inner.into_bytes()
    } else {
        unescape(&inner, bytes)?
    };
    if bytes {
        return Some(Value::Bytes(value.into()));
    }
    String::from_utf8(value)
        .ok()
        .map(|text| Value::from(Arc::<str>::from(text)))
}

fn unescape(text: &str, bytes: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let simple = match rest.next()? {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' => b'\\',
            '\'' => b'\'',
            '"' => b'"',
            '`' => b'`',
            '?' => b'?',
            'x' | 'X' => {
                number(&mut rest, "", 2, 16, bytes, &mut out)?;
                continue;
            }
            'u' if !bytes => {
                number(&mut rest, "", 4, 16, false, &mut out)?;
                continue;
            }
            'U' if !bytes => {
                number(&mut rest, "", 8, 16, false, &mut out)?;
                continue;
            }
            first @ '0'..='3' => {
                number(&mut rest, first.encode_utf8(&mut [0; 4]), 2, 8, bytes, &mut out)?;
                continue;
            }
            _ => return None,
        };
        out.push(simple);
    }
    Some(out)
}

fn number(
    rest: &mut std::str::Chars<'_>,
    first: &str,
    count: usize,
    radix: u32,
    bytes: bool,
    out: &mut Vec<u8>,
) -> Option<()> {
    let digits: String = first.chars().chain(rest.take(count)).collect();
    if digits.len() != first.len() + count || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let code = u32::from_str_radix(&digits, radix).ok()?;
    if bytes {
        out.push(u8::try_from(code).ok()?);
    } else {
        out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(())
}
