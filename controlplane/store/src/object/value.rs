//! JSON of an object with a gap for its resourceVersion.

use bytes::Bytes;

/// An object's JSON; the commit that stores it fills in `metadata.resourceVersion`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    json: Vec<u8>,
    revision_at: usize,
}

/// The JSON has no string at `metadata.resourceVersion`, or none at the given offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the object has no metadata.resourceVersion string to fill in")]
pub struct InvalidValue;

impl Value {
    /// `json` with an empty resourceVersion string; `revision_at` is the offset between its two
    /// quotes.
    pub fn new(json: Vec<u8>, revision_at: usize) -> Result<Self, InvalidValue> {
        let before = revision_at.checked_sub(1).and_then(|at| json.get(at));
        match (before, json.get(revision_at)) {
            (Some(b'"'), Some(b'"')) => Ok(Self { json, revision_at }),
            _ => Err(InvalidValue),
        }
    }

    /// Finds `metadata.resourceVersion` in well-formed JSON and empties it, whatever its value.
    pub fn parse(mut json: Vec<u8>) -> Result<Self, InvalidValue> {
        let (start, end) = scan::resource_version(&json).ok_or(InvalidValue)?;
        json.drain(start..end);
        Self::new(json, start)
    }

    /// The length of the bytes without a revision.
    pub fn len(&self) -> usize {
        self.json.len()
    }

    /// True if there are no bytes (never: a value has at least its quotes).
    pub fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// The complete JSON with the revision filled in.
    pub(crate) fn splice(&self, revision: u64) -> Bytes {
        let digits = revision.to_string();
        let (head, tail) = self.json.split_at(self.revision_at);
        let mut bytes = Vec::with_capacity(self.json.len() + digits.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(tail);
        bytes.into()
    }

    /// True if the object is being deleted.
    pub(crate) fn is_being_deleted(&self) -> bool {
        scan::is_deleted(&self.json)
    }

    /// True if `stored`, an object at `revision`, equals this value: writing it again would change
    /// nothing.
    pub(crate) fn equals(&self, stored: &[u8], revision: u64) -> bool {
        let (head, tail) = self.json.split_at(self.revision_at);
        stored
            .strip_prefix(head)
            .and_then(|rest| rest.strip_suffix(tail))
            .is_some_and(|digits| digits == revision.to_string().as_bytes())
    }
}

/// A scanner for one path in serialized JSON: no allocation, no recursion.
mod scan {
    /// The range of the characters inside the quotes of `metadata.resourceVersion`.
    pub(crate) fn resource_version(json: &[u8]) -> Option<(usize, usize)> {
        let metadata = member(json, skip_space(json, 0), b"\"metadata\"")?;
        let value = member(json, metadata, b"\"resourceVersion\"")?;
        (json.get(value) == Some(&b'"')).then_some(())?;
        Some((value + 1, string_end(json, value)? - 1))
    }

    /// True if there is a `metadata.deletionTimestamp`.
    pub(crate) fn is_deleted(json: &[u8]) -> bool {
        let metadata = member(json, skip_space(json, 0), b"\"metadata\"");
        let deleted = metadata.and_then(|metadata| member(json, metadata, b"\"deletionTimestamp\""));
        deleted.is_some_and(|at| json.get(at) == Some(&b'"'))
    }

    /// The offset of the value of a member of the object that begins at `at`.
    fn member(json: &[u8], at: usize, name: &[u8]) -> Option<usize> {
        (json.get(at) == Some(&b'{')).then_some(())?;
        let mut at = skip_space(json, at + 1);
        while json.get(at) == Some(&b'"') {
            let end = string_end(json, at)?;
            let colon = skip_space(json, end);
            (json.get(colon) == Some(&b':')).then_some(())?;
            let value = skip_space(json, colon + 1);
            if json.get(at..end) == Some(name) {
                return Some(value);
            }
            at = skip_space(json, value_end(json, value)?);
            (json.get(at) == Some(&b',')).then_some(())?;
            at = skip_space(json, at + 1);
        }
        None
    }

    fn skip_space(json: &[u8], mut at: usize) -> usize {
        while json.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        at
    }

    /// The offset after the string whose opening quote is at `at`.
    fn string_end(json: &[u8], mut at: usize) -> Option<usize> {
        loop {
            at += 1;
            match json.get(at)? {
                b'"' => return Some(at + 1),
                b'\\' => at += 1,
                _ => {}
            }
        }
    }

    /// The offset after the value that begins at `at`.
    fn value_end(json: &[u8], mut at: usize) -> Option<usize> {
        let mut depth = 0_usize;
        loop {
            match json.get(at)? {
                b'"' => at = string_end(json, at)?,
                b'{' | b'[' => {
                    depth += 1;
                    at += 1;
                }
                b'}' | b']' | b',' if depth == 0 => return Some(at),
                b'}' | b']' => {
                    depth -= 1;
                    at += 1;
                }
                _ => at += 1,
            }
            if depth == 0 && matches!(json.get(at), Some(b',' | b'}' | b']')) {
                return Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced(json: &str) -> Option<String> {
        let value = Value::parse(json.as_bytes().to_vec()).ok()?;
        String::from_utf8(value.splice(42).to_vec()).ok()
    }

    #[test]
    fn fills_only_the_objects_own_revision() {
        let cases = [
            (
                r#"{"metadata":{"resourceVersion":""}}"#,
                Some(r#"{"metadata":{"resourceVersion":"42"}}"#),
            ),
            (
                r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#,
                Some(r#"{"metadata":{"name":"a","resourceVersion":"42"}}"#),
            ),
            (
                r#"{"kind":"X","spec":{"metadata":{"resourceVersion":"1"}},"metadata":{"annotations":{"resourceVersion":"","a":"\",\"resourceVersion\":\"\""},"resourceVersion":""}}"#,
                Some(
                    r#"{"kind":"X","spec":{"metadata":{"resourceVersion":"1"}},"metadata":{"annotations":{"resourceVersion":"","a":"\",\"resourceVersion\":\"\""},"resourceVersion":"42"}}"#,
                ),
            ),
            (
                r#"{ "a" : [1, {"b":2}], "metadata" : { "resourceVersion" : "" } }"#,
                Some(r#"{ "a" : [1, {"b":2}], "metadata" : { "resourceVersion" : "42" } }"#),
            ),
            (r#"{"metadata":{}}"#, None),
            (r#"{"metadata":{"resourceVersion":7}}"#, None),
            (r#"{"metadata":{"resourceVersion":""#, None),
            (r"[]", None),
            ("", None),
        ];
        for (json, expected) in cases {
            assert_eq!(spliced(json).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn knows_its_stored_form() {
        let value = Value::parse(br#"{"metadata":{"resourceVersion":""},"a":1}"#.to_vec()).unwrap();
        let stored = value.splice(9);
        assert!(value.equals(&stored, 9));
        assert!(!value.equals(&stored, 8));
        let other = Value::parse(br#"{"metadata":{"resourceVersion":""},"a":2}"#.to_vec()).unwrap();
        assert!(!other.equals(&stored, 9));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(json in proptest::collection::vec(proptest::sample::select(b"{}[]\",:\\ a1metadata".to_vec()), 0..60)) {
            drop(Value::parse(json));
        }
    }
}
