//! The members that table cells show, cut out of an object's JSON before it is decoded for its row: decoding whole objects
//! would take most of a list's time.

use std::borrow::Cow;

use crate::schema::managed::{raw, splice};
use crate::table::Shown;

/// Compact JSON of those members; malformed JSON is left to the decoder.
pub(crate) fn shown<'a>(json: &'a [u8], shown: &[Shown]) -> Cow<'a, [u8]> {
    if shown.is_empty() {
        return splice::split(json).object;
    }
    let mut kept = String::with_capacity(json.len() / 2);
    let rest = std::str::from_utf8(json)
        .ok()
        .and_then(|text| keep(text, shown, &mut kept));
    match rest {
        Some("") => kept.into_bytes().into(),
        _ => json.into(),
    }
}

/// Appends what is shown of the value at the start of the text, and returns the text after the value.
fn keep<'a>(json: &'a str, shown: &[Shown], kept: &mut String) -> Option<&'a str> {
    if let Some(members) = json.strip_prefix('{') {
        return keep_members(members, shown, kept);
    }
    let Some(mut rest) = json.strip_prefix('[') else {
        return keep_whole(json, kept);
    };
    let mut before = '[';
    while !rest.starts_with(']') {
        kept.push(before);
        before = ',';
        let after = keep(rest, shown, kept)?;
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    kept.push_str(if before == '[' { "[]" } else { "]" });
    rest.get(1..)
}

fn keep_members<'a>(mut rest: &'a str, shown: &[Shown], kept: &mut String) -> Option<&'a str> {
    let mut before = '{';
    while !rest.starts_with('}') {
        let (key, value) = rest.split_at_checked(raw::end(rest)?)?;
        let value = value.strip_prefix(':')?;
        let name = raw::text(key);
        let rule = shown.iter().find(|rule| rule.key() == name);
        if rule.is_some() {
            kept.push(before);
            kept.push_str(key);
            kept.push(':');
            before = ',';
        }
        let after = match rule {
            None => value.get(raw::end(value)?..)?,
            Some(Shown::Whole(_)) => keep_whole(value, kept)?,
            Some(Shown::Within(_, shown)) => keep(value, shown, kept)?,
        };
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    kept.push_str(if before == '{' { "{}" } else { "}" });
    rest.get(1..)
}

fn keep_whole<'a>(json: &'a str, kept: &mut String) -> Option<&'a str> {
    let (value, rest) = json.split_at_checked(raw::end(json)?)?;
    kept.push_str(value);
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::shown;
    use crate::table::Shown;

    #[test]
    fn shown_members_are_kept_wherever_they_stand() {
        let members = [
            Shown::Whole("b"),
            Shown::Within("l", &[Shown::Whole("d")]),
            Shown::Within("m", &[Shown::Whole("a")]),
        ];
        for (json, kept) in [
            (r#"{"a":1,"b":2}"#, r#"{"b":2}"#),
            (r#"{"b":"\"a","a":{"x":[1,"]"]}}"#, r#"{"b":"\"a"}"#),
            (r#"{"a":1}"#, "{}"),
            (r#"{"\u0062":[1],"\"":1,"l":null}"#, r#"{"\u0062":[1],"l":null}"#),
            (
                r#"{"l":[{"b":1,"d":"}"},{"b":[]},3],"a":1}"#,
                r#"{"l":[{"d":"}"},{},3]}"#,
            ),
            (r#"{"l":[],"m":{"c":1,"a":null}}"#, r#"{"l":[],"m":{"a":null}}"#),
            ("{\"a\":1", "{\"a\":1"),
            ("", ""),
            ("{\"a\":1}}", "{\"a\":1}}"),
        ] {
            let out = shown(json.as_bytes(), &members);
            assert_eq!(std::str::from_utf8(&out).unwrap(), kept, "{json}");
        }
    }
}
