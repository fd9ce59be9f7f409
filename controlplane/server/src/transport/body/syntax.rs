//! Upstream's messages about a body that is not JSON: those of Go's decoder, and the beginning of
//! the body.

use api::decode;
use serde_json::{Map, Value};

use crate::request::failure::Failure;

/// 400 for a body of which not even the kind could be read.
pub(crate) fn unrecognized(kind: &str, body: &[u8], because: &dyn std::fmt::Display) -> Failure {
    let summary = summary(body);
    Failure::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {because} ({summary})"
    ))
}

/// The same for JSON, which was read to no end.
pub(crate) fn no_json(kind: &str, body: &[u8], error: &serde_json::Error) -> Failure {
    let because = format!("couldn't get version/kind; json parse error: {}", words(body, error));
    unrecognized(kind, body, &because)
}

fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let shown = body.get(..SHOWN).unwrap_or(body);
    let rest = if shown.len() < body.len() { " ..." } else { "" };
    let text = match shown {
        [] => "<empty>".to_owned(),
        [b'{', ..] => String::from_utf8_lossy(shown).into_owned(),
        _ => {
            let digits: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            digits.concat()
        }
    };
    text + rest
}

/// Go's error message for JSON that cannot be parsed.
pub(crate) fn words(body: &[u8], error: &serde_json::Error) -> String {
    if error.is_data()
        && let Some(kind) = decode::syntax::no_object(body)
    {
        return format!(
            "json: cannot unmarshal {kind} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        );
    }
    if error.is_data()
        && let Some(found) = wrong_name(body)
    {
        return found;
    }
    decode::syntax::words(body, error)
}

/// The version or the kind, where it is no text.
fn wrong_name(body: &[u8]) -> Option<String> {
    let members: Map<String, Value> = serde_json::from_slice(body).ok()?;
    ["apiVersion", "kind"].into_iter().find_map(|name| {
        let found = match members.get(name)? {
            Value::Null | Value::String(_) => return None,
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Some(format!(
            "json: cannot unmarshal {found} into Go struct field .{name} of type string"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_says() {
        for (body, expected) in [
            ("", "unexpected end of JSON input (<empty>)"),
            (r#"{"a":{"#, r#"unexpected end of JSON input ({"a":{)"#),
            (
                "apiVersion: v1",
                "invalid character 'a' looking for beginning of value (61706956657273696f6e3a207631)",
            ),
            (
                "{a}",
                "invalid character 'a' looking for beginning of object key string ({a})",
            ),
            (
                r#"{"a":1,}"#,
                r#"invalid character '}' looking for beginning of object key string ({"a":1,})"#,
            ),
            (
                "[1,]",
                "invalid character ']' looking for beginning of value (5b312c5d)",
            ),
            (r#"{"a" 1}"#, r#"invalid character '1' after object key ({"a" 1})"#),
            (
                r#"{"a":1 "b"}"#,
                r#"invalid character '"' after object key:value pair ({"a":1 "b"})"#,
            ),
            ("[1 2]", "invalid character '2' after array element (5b3120325d)"),
            ("{} x", "invalid character 'x' after top-level value ({} x)"),
            (
                "{\"a\":\n'1'}",
                "invalid character '\\'' looking for beginning of value ({\"a\":\n'1'})",
            ),
            (
                r#"{"a":"\x"}"#,
                r#"invalid character 'x' in string escape code ({"a":"\x"})"#,
            ),
            (
                "{\"a\":\"\n\"}",
                "invalid character '\\n' in string literal ({\"a\":\"\n\"})",
            ),
            (
                r#"{"metadata":{"name":"a name that is long","#,
                r#"unexpected end of JSON input ({"metadata":{"name":"a name th ...)"#,
            ),
        ] {
            let error = serde_json::from_str::<Value>(body).unwrap_err();
            assert_eq!(
                no_json("Pod", body.as_bytes(), &error).to_string(),
                format!(
                    "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse \
                     error: {expected}"
                ),
                "{error}"
            );
        }
    }
}
