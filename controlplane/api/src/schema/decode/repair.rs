//! Repair of invalid strings in JSON, as in Go: invalid UTF-8 and unpaired surrogates become
//! U+FFFD.

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// JSON with its strings repaired; none if there is nothing to repair. Text between the strings is
/// not changed, and neither is malformed JSON.
pub fn strings(json: &[u8]) -> Option<Vec<u8>> {
    let surrogate = |bytes: &[u8]| matches!(bytes, [b'\\', b'u', b'd' | b'D']);
    if std::str::from_utf8(json).is_ok() && !json.windows(3).any(surrogate) {
        return None;
    }
    let mut repaired = Vec::with_capacity(json.len());
    let (mut rest, mut inside) = (json, false);
    while let Some(first) = rest.first() {
        let (piece, used): (&[u8], usize) = match first {
            b'\\' if inside => escape(rest),
            0x80.. if inside => character(rest),
            b'"' => {
                inside = !inside;
                (b"\"", 1)
            }
            other => (std::slice::from_ref(other), 1),
        };
        repaired.extend_from_slice(piece);
        rest = rest.get(used..).unwrap_or_default();
    }
    (repaired != json).then_some(repaired)
}

/// Replacement for the escape at the start of `rest`, and the number of bytes that it replaces.
fn escape(rest: &[u8]) -> (&[u8], usize) {
    let keep = |length: usize| {
        let length = length.min(rest.len());
        (rest.get(..length).unwrap_or_default(), length)
    };
    match (unit(rest, 0), unit(rest, 6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => keep(12),
        (Some(0xd800..=0xdfff), _) => (REPLACEMENT, 6),
        (Some(_), _) => keep(6),
        (None, _) => keep(2),
    }
}

/// UTF-16 code unit that is written as `\uXXXX` at an offset.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Non-ASCII character at the start of the bytes; each byte of an invalid one is replaced.
fn character(rest: &[u8]) -> (&[u8], usize) {
    let whole = (2..=4).find_map(|length| rest.get(..length).filter(|bytes| std::str::from_utf8(bytes).is_ok()));
    whole.map_or((REPLACEMENT, 1), |whole| (whole, whole.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_none_are_read_as_go_reads_them() {
        for (json, expected) in [
            (&br#"{"a":"\ud83d x"}"#[..], "{\"a\":\"\u{fffd} x\"}"),
            (
                br#"["\uD83D\ud83d\ude00","\ude00\ud83d"]"#,
                "[\"\u{fffd}\\ud83d\\ude00\",\"\u{fffd}\u{fffd}\"]",
            ),
            (
                b"[\"\xff\xfe\xe2\x82\",\"\xc3\xbc\"]",
                "[\"\u{fffd}\u{fffd}\u{fffd}\u{fffd}\",\"\u{fc}\"]",
            ),
            (br#"["\\ud83d\"","\ud83d"]"#, "[\"\\\\ud83d\\\"\",\"\u{fffd}\"]"),
            (br#"["\ud83d\n\ud8"#, "[\"\u{fffd}\\n\\ud8"),
        ] {
            let repaired = strings(json).unwrap();
            assert_eq!(String::from_utf8(repaired).as_deref(), Ok(expected));
        }
        for json in [&br#"{"a":"\ud83d\ude00 \\ud"}"#[..], b"[\"a\"]\xff", b"{}", b""] {
            assert_eq!(strings(json), None, "{}", json.escape_ascii());
        }
    }
}
