//! Reader of compact JSON without allocations.

use std::borrow::Cow;

/// Members of an object; none for any other value.
pub(crate) fn members(value: &str) -> Members<'_> {
    Members(value.strip_prefix('{').unwrap_or_default())
}

/// Items of a list; none for any other value.
pub(crate) fn items(value: &str) -> Items<'_> {
    Items(value.strip_prefix('[').unwrap_or_default())
}

pub(crate) fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

/// Keys and values of an object.
pub(crate) struct Members<'a>(&'a str);

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.0.split_at_checked(end(self.0)?)?;
        let rest = rest.strip_prefix(':')?;
        let (value, rest) = rest.split_at_checked(end(rest)?)?;
        self.0 = rest.strip_prefix(',').unwrap_or_default();
        Some((text(key), value))
    }
}

/// Values of a list.
pub(crate) struct Items<'a>(&'a str);

impl<'a> Iterator for Items<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<Self::Item> {
        let (value, rest) = self.0.split_at_checked(end(self.0)?)?;
        self.0 = rest.strip_prefix(',').unwrap_or_default();
        Some(value)
    }
}

/// Text of a JSON string.
pub(crate) fn text(json: &str) -> Cow<'_, str> {
    let inner = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(json);
    if inner.contains('\\') {
        return serde_json::from_str(json).map_or(Cow::Borrowed(inner), Cow::Owned);
    }
    Cow::Borrowed(inner)
}

/// End of the value at the start of the text; none if there is no value.
pub(crate) fn end(json: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    match bytes.first()? {
        b'"' => string_end(bytes, 0),
        b'{' | b'[' => {
            let mut depth = 0_usize;
            let mut at = 0;
            loop {
                match bytes.get(at)? {
                    b'"' => {
                        at = string_end(bytes, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.checked_sub(1)?,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        b'}' | b']' | b',' | b':' => None,
        _ => Some(
            bytes
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']'))
                .unwrap_or(bytes.len()),
        ),
    }
}

fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += 1;
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 1,
            _ => {}
        }
    }
}
