//! Removal of members that no table cell shows, before an object is decoded for its row: decoding
//! would otherwise take most of a list's time.

use std::borrow::Cow;

use serde_json::Value;

use crate::kind::Unshown;
use crate::schema::managed::raw;

/// Compact JSON without those members; malformed JSON is left to the decoder.
pub(crate) fn shown(json: &[u8], unshown: &[Unshown]) -> Vec<u8> {
    let mut kept = String::with_capacity(json.len() / 2);
    match std::str::from_utf8(json) {
        Ok(text) if raw::end(text) == Some(text.len()) => {
            keep(text, unshown, &mut kept);
            kept.into_bytes()
        }
        _ => json.to_vec(),
    }
}

fn keep(value: &str, unshown: &[Unshown], kept: &mut String) {
    if raw::is_object(value) {
        let mut before = '{';
        for (key, member) in raw::members(value) {
            let rule = unshown.iter().find(|rule| rule.key() == key);
            if matches!(rule, Some(Unshown::Whole(_))) {
                continue;
            }
            kept.push(before);
            match key {
                Cow::Borrowed(key) => kept.extend(["\"", key, "\""]),
                Cow::Owned(key) => kept.push_str(&Value::from(key).to_string()),
            }
            kept.push(':');
            before = ',';
            match rule {
                Some(Unshown::Within(_, unshown)) => keep(member, unshown, kept),
                _ => kept.push_str(member),
            }
        }
        if before == '{' {
            kept.push(before);
        }
        kept.push('}');
    } else if value.starts_with('[') {
        let mut before = '[';
        for item in raw::items(value) {
            kept.push(before);
            before = ',';
            keep(item, unshown, kept);
        }
        if before == '[' {
            kept.push(before);
        }
        kept.push(']');
    } else {
        kept.push_str(value);
    }
}

#[cfg(test)]
mod tests {
    use super::shown;
    use crate::kind::Unshown;

    #[test]
    fn members_are_left_out_wherever_they_stand() {
        let unshown = [
            Unshown::Whole("a"),
            Unshown::Within("l", &[Unshown::Whole("b")]),
            Unshown::Within("m", &[Unshown::Whole("c")]),
        ];
        for (json, kept) in [
            (r#"{"a":1,"b":2}"#, r#"{"b":2}"#),
            (r#"{"b":"\"a","a":{"x":[1,"]"]}}"#, r#"{"b":"\"a"}"#),
            (r#"{"a":1}"#, "{}"),
            (
                r#"{"l":[{"b":1,"d":"}"},{"b":[]},3],"a":1}"#,
                r#"{"l":[{"d":"}"},{},3]}"#,
            ),
            (
                r#"{"l":[],"m":{"c":1,"a":null},"\"":1}"#,
                r#"{"l":[],"m":{"a":null},"\"":1}"#,
            ),
            ("{\"a\":1", "{\"a\":1"),
            ("", ""),
            ("{\"a\":1}}", "{\"a\":1}}"),
        ] {
            let out = shown(json.as_bytes(), &unshown);
            assert_eq!(std::str::from_utf8(&out).unwrap(), kept, "{json}");
        }
    }
}
