//! Splits a request's path into decoded segments and refuses what could confuse a reader of it.

use crate::failure::Failure;

/// Decoded segments of a path, without the empty ones at both ends.
///
/// # Errors
/// 400 for bad escapes, control characters, bytes that are not UTF-8, and escaped slashes or dots-only segments: none
/// of them can name a resource, and each has confused some router.
pub fn segments(path: &str) -> Result<Vec<String>, Failure> {
    let trimmed = path.trim_matches('/');
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    trimmed.split('/').map(segment).collect()
}

fn segment(raw: &str) -> Result<String, Failure> {
    let decoded = percent_decode(raw.as_bytes()).ok_or(Failure::bad_request("invalid escape in the request path"))?;
    let text =
        String::from_utf8(decoded).map_err(|_bytes| Failure::bad_request("the request path is not valid UTF-8"))?;
    if text == "." || text == ".." || text.contains('/') {
        return Err(Failure::bad_request(
            "the request path must not contain '.', '..' or an escaped '/' as a segment",
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(Failure::bad_request(
            "the request path must not contain control characters",
        ));
    }
    Ok(text)
}

/// Undoes percent encoding; nothing when an escape is malformed.
pub fn percent_decode(raw: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw.iter();
    while let Some(byte) = rest.next() {
        if *byte == b'%' {
            let high = hex(*rest.next()?)?;
            let low = hex(*rest.next()?)?;
            decoded.push(high << 4 | low);
        } else {
            decoded.push(*byte);
        }
    }
    Some(decoded)
}

/// Escapes everything but letters, digits and `-._~`.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.extend([byte >> 4, byte & 0x0f].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
        }
    }
    encoded
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
