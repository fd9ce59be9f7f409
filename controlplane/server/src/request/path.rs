//! Splits a request's path into decoded segments and rejects ambiguous ones.

use crate::request::failure::Failure;

/// Decoded segments of a path, without the empty ones at both ends. Behind a proxy an escaped slash parts segments, too, as for
/// upstream, which decodes before it looks for slashes.
///
/// # Errors
/// 400 for bad escapes, control characters, bytes that are not UTF-8, and escaped slashes or dots-only segments: none
/// of them can name a resource, and each has confused some router.
pub fn segments(path: &str) -> Result<Vec<String>, Failure> {
    let trimmed = path.trim_matches('/');
    let mut segments = Vec::new();
    if trimmed.is_empty() {
        return Ok(segments);
    }
    for raw in trimmed.split('/') {
        let text = decode(raw)?;
        if is_behind_proxy(&segments) {
            segments.extend(text.split('/').map(str::to_owned));
        } else {
            segments.push(segment(text)?);
        }
    }
    Ok(segments)
}

/// True behind `nodes/NAME/proxy` and `namespaces/NAME/RESOURCE/NAME/proxy`: the rest is another server's path.
pub(crate) fn is_behind_proxy(segments: &[String]) -> bool {
    let words = || segments.iter().map(String::as_str);
    let at = |index| words().nth(index).unwrap_or_default();
    at(0) == "api" && (at(2) == "nodes" && at(4) == "proxy" || at(2) == "namespaces" && at(6) == "proxy")
}

fn decode(raw: &str) -> Result<String, Failure> {
    let decoded = percent_decode(raw.as_bytes()).ok_or(Failure::bad_request("invalid escape in the request path"))?;
    String::from_utf8(decoded).map_err(|_bytes| Failure::bad_request("the request path is not valid UTF-8"))
}

fn segment(text: String) -> Result<String, Failure> {
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

/// Decodes percent encoding; `None` when an escape is malformed.
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
    encode(text, b"-._~")
}

/// Escapes a path as Go does (`net/url`, `EscapedPath`).
pub(crate) fn escape(path: &str) -> String {
    encode(path, b"-._~$&+,/:;=@")
}

fn encode(text: &str, kept: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.extend(
                [byte >> 4, byte & 0x0f]
                    .map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase()),
            );
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
