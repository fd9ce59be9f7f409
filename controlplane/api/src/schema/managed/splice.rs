//! Removal of `metadata.managedFields` from an object's JSON before it is decoded, and insertion
//! after it is encoded.

use std::borrow::Cow;

use super::raw;

/// An object's JSON in two parts.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The object without its managed fields.
    pub object: Cow<'a, [u8]>,
    /// The list of entries as JSON; empty when there is none.
    pub managed: &'a str,
}

/// Removes the entries from compact JSON, as the server stores it.
pub fn split(json: &[u8]) -> Parts<'_> {
    let whole = Parts {
        object: Cow::Borrowed(json),
        managed: "",
    };
    let Some((text, place)) = std::str::from_utf8(json)
        .ok()
        .and_then(|text| Some((text, find(text)?)))
    else {
        return whole;
    };
    let Some((from, to, managed)) = place.member else {
        return whole;
    };
    let (Some(head), Some(tail)) = (text.get(..from), text.get(to..)) else {
        return whole;
    };
    Parts {
        object: Cow::Owned([head, tail].concat().into_bytes()),
        managed,
    }
}

/// Inserts the entries into compact JSON without any; an empty text inserts nothing.
pub fn join(mut json: Vec<u8>, managed: &str) -> Vec<u8> {
    if managed.is_empty() {
        return json;
    }
    let Some(place) = std::str::from_utf8(&json).ok().and_then(find) else {
        return json;
    };
    let comma = if place.is_empty { "" } else { "," };
    let member = format!("{comma}\"managedFields\":{managed}");
    let end = place.end;
    json.splice(end..end, member.into_bytes());
    json
}

/// The text of an object's metadata in compact JSON.
pub fn metadata(json: &[u8]) -> Option<&str> {
    let (_, metadata) = raw::members(std::str::from_utf8(json).ok()?).find(|(key, _)| key == "metadata")?;
    Some(metadata)
}

struct Place<'a> {
    /// Range of the member with one adjacent comma, and its value.
    member: Option<(usize, usize, &'a str)>,
    /// Offset of the closing bracket of the metadata.
    end: usize,
    is_empty: bool,
}

fn find(json: &str) -> Option<Place<'_>> {
    let offset = |part: &str| part.as_ptr().addr().checked_sub(json.as_ptr().addr());
    let (_, metadata) = raw::members(json).find(|(key, _)| key == "metadata")?;
    let mut place = Place {
        member: None,
        end: offset(metadata)?.checked_add(metadata.len())?.checked_sub(1)?,
        is_empty: metadata == "{}",
    };
    let mut is_first = true;
    for (key, value) in raw::members(metadata) {
        if key == "managedFields" {
            // `"managedFields":` precedes the value.
            let start = offset(value)?.checked_sub("\"managedFields\":".len())?;
            let end = offset(value)?.checked_add(value.len())?;
            place.member = Some(if is_first {
                let comma = usize::from(json.as_bytes().get(end) == Some(&b','));
                (start, end + comma, value)
            } else {
                (start.checked_sub(1)?, end, value)
            });
        }
        is_first = false;
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::{join, split};

    #[test]
    fn entries_go_in_and_come_out() {
        for json in [
            r#"{"metadata":{"name":"a"},"spec":{"metadata":{"managedFields":[1]}}}"#,
            r#"{"metadata":{},"x":"managedFields"}"#,
            r#"{"apiVersion":"v1","metadata":{"annotations":{"managedFields":"\"}"}}}"#,
        ] {
            let joined = join(json.as_bytes().to_vec(), r#"[{"manager":"a"}]"#);
            let value: serde_json::Value = serde_json::from_slice(&joined).unwrap();
            assert_eq!(value["metadata"]["managedFields"][0]["manager"], "a", "{json}");
            let parts = split(&joined);
            assert_eq!(parts.managed, r#"[{"manager":"a"}]"#);
            assert_eq!(std::str::from_utf8(&parts.object).unwrap(), json);
            assert_eq!(split(json.as_bytes()).managed, "");
        }
        for json in [
            r#"{"metadata":{"managedFields":[],"name":"a"}}"#,
            r#"{"metadata":{"name":"a","managedFields":[]}}"#,
        ] {
            assert_eq!(&*split(json.as_bytes()).object, br#"{"metadata":{"name":"a"}}"#);
        }
        for broken in ["", "{", "[]", r#"{"metadata":"#, r#"{"metadata":{"a"#, "\u{fffd}"] {
            assert_eq!(&*split(broken.as_bytes()).object, broken.as_bytes());
            assert_eq!(join(broken.as_bytes().to_vec(), "[]"), broken.as_bytes());
        }
    }
}
