//! Error messages of Go's JSON decoder for JSON that cannot be parsed.

use serde::de::IgnoredAny;

/// Go's error message for text that is not JSON.
pub fn words(json: &[u8], error: &serde_json::Error) -> String {
    let said = error.to_string();
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let Some(character) = at(json, error.line(), error.column()) else {
        return said;
    };
    let place = if said.starts_with("trailing characters") {
        "after top-level value"
    } else if said.starts_with("key must be a string") || (said.starts_with("trailing comma") && character == '}') {
        "looking for beginning of object key string"
    } else if said.starts_with("expected value") || said.starts_with("trailing comma") {
        "looking for beginning of value"
    } else if said.starts_with("expected `:`") {
        "after object key"
    } else if said.starts_with("expected `,` or `}`") {
        "after object key:value pair"
    } else if said.starts_with("expected `,` or `]`") {
        "after array element"
    } else if said.starts_with("invalid escape") {
        "in string escape code"
    } else if said.starts_with("control character") {
        "in string literal"
    } else if said.starts_with("invalid number") {
        "in numeric literal"
    } else if said.starts_with("expected ident") {
        &in_literal(json, error)
    } else {
        return said;
    };
    let quoted = match character {
        '\'' => r"'\''".to_owned(),
        '"' => "'\"'".to_owned(),
        other => format!("'{}'", other.escape_debug()),
    };
    format!("invalid character {quoted} {place}")
}

/// Go's error message for text that is neither an object nor null; none if it is one of them.
pub fn no_map(json: &[u8]) -> Option<String> {
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(json) {
        return Some(words(json, &error));
    }
    let found = no_object(json)?;
    Some(format!(
        "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
    ))
}

/// Go's name for the type of a JSON value that is neither an object nor null.
pub fn no_object(json: &[u8]) -> Option<&'static str> {
    match json.trim_ascii_start().first()? {
        b'[' => Some("array"),
        b'"' => Some("string"),
        b't' | b'f' => Some("bool"),
        b'-' | b'0'..=b'9' => Some("number"),
        _ => None,
    }
}

/// Character at which parsing stopped; lines and columns begin at 1, and column 0 is the end of the
/// previous line.
fn at(json: &[u8], line: usize, column: usize) -> Option<char> {
    let Some(column) = column.checked_sub(1) else {
        return Some('\n');
    };
    let line = json.split(|byte| *byte == b'\n').nth(line.checked_sub(1)?)?;
    line.get(column).copied().map(char::from)
}

/// Error message for an invalid character in `true`, `false` or `null`.
fn in_literal(json: &[u8], error: &serde_json::Error) -> String {
    let line = json.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1));
    let read = line.and_then(|line| line.get(..error.column().saturating_sub(1)));
    let read = read.unwrap_or_default();
    let letters = read.iter().rev().take_while(|byte| byte.is_ascii_lowercase()).count();
    let begun = String::from_utf8_lossy(read.get(read.len() - letters..).unwrap_or_default());
    ["true", "false", "null"]
        .into_iter()
        .find_map(|literal| {
            let expected = literal.strip_prefix(&*begun)?.chars().next()?;
            Some(format!("in literal {literal} (expecting '{expected}')"))
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::no_map;

    #[test]
    fn what_go_says_of_what_is_no_map() {
        for good in ["{}", " null ", r#"{"auths":{"a":[1,{"b":"c"}]}}"#, "{\"a\":\"\u{e4}\"}"] {
            assert_eq!(no_map(good.as_bytes()), None, "{good}");
        }
        for (bad, expected) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("auths", "invalid character 'a' looking for beginning of value"),
            ("{} x", "invalid character 'x' after top-level value"),
            (
                "{'a':1}",
                "invalid character '\\'' looking for beginning of object key string",
            ),
            ("nulx", "invalid character 'x' in literal null (expecting 'l')"),
            ("{\"a\": tRue}", "invalid character 'R' in literal true (expecting 'r')"),
            (
                "[1]",
                "json: cannot unmarshal array into Go value of type map[string]interface {}",
            ),
            (
                "\"a\"",
                "json: cannot unmarshal string into Go value of type map[string]interface {}",
            ),
            (
                "7",
                "json: cannot unmarshal number into Go value of type map[string]interface {}",
            ),
            (
                "true",
                "json: cannot unmarshal bool into Go value of type map[string]interface {}",
            ),
        ] {
            assert_eq!(no_map(bad.as_bytes()).as_deref(), Some(expected), "{bad}");
        }
    }
}
