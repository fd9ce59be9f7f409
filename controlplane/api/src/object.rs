//! Objects of any kind behind one pointer.

use std::any::Any;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::{Kind, Verbs};
use crate::schema::{Schema, encode, go_json};

/// Object whose kind is known only at run time; implemented for every [`Kind`].
pub trait Object: Any + Send + Sync {
    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// The object's metadata, to change.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    /// The complete object as JSON, `apiVersion` and `kind` included.
    fn to_json(&self) -> Vec<u8>;
    /// A copy.
    fn clone_box(&self) -> Box<dyn Object>;
    /// For downcasts to the kind.
    fn as_any(&self) -> &dyn Any;
    /// For downcasts to the kind.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<K: Kind> Object for K {
    fn metadata(&self) -> &ObjectMeta {
        k8s_openapi::Metadata::metadata(self)
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        k8s_openapi::Metadata::metadata_mut(self)
    }

    fn to_json(&self) -> Vec<u8> {
        written(self)
    }

    fn clone_box(&self) -> Box<dyn Object> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// JSON of an object as upstream writes it.
pub(crate) fn written<K: Kind>(object: &K) -> Vec<u8> {
    let json = encode(object);
    // Responses that are never stored keep their empty lists.
    let is_stored = matches!(K::VERBS, Verbs::All | Verbs::OneByOne);
    match Schema::of_kind(K::API_VERSION, K::KIND) {
        Some(schema) if is_stored => go_json::write(schema, &json),
        schema => go_json::order(schema, &json),
    }
}

/// Offset between the quotes of an empty `metadata.resourceVersion` in an object's JSON. None if
/// there is no such field or it is not empty. Only the object's own metadata counts: not an
/// annotation of that name, nor a template's metadata.
pub fn revision_at(json: &[u8]) -> Option<usize> {
    let mut scanner = Scanner { json, at: 0 };
    scanner.enter_member(b"metadata")?;
    scanner.enter_member(b"resourceVersion")?;
    match json.get(scanner.at..scanner.at + 2) {
        Some(b"\"\"") => Some(scanner.at + 1),
        _ => None,
    }
}

/// Reader of compact JSON that a serializer wrote, so it is well-formed.
struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// Moves to the value of a member of the object that starts here.
    fn enter_member(&mut self, name: &[u8]) -> Option<()> {
        if *self.json.get(self.at)? != b'{' {
            return None;
        }
        self.at += 1;
        loop {
            let key_start = self.at + 1;
            self.skip_value()?;
            let key = self.json.get(key_start..self.at - 1)?;
            self.at += 1;
            if key == name {
                return Some(());
            }
            self.skip_value()?;
            if *self.json.get(self.at)? != b',' {
                return None;
            }
            self.at += 1;
        }
    }

    /// Skips one value.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match *self.json.get(self.at)? {
                b'"' => self.skip_text()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b',' | b':' | b'}' | b']' if depth == 0 => return Some(()),
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
            if depth == 0 && matches!(self.json.get(self.at), Some(b',' | b':' | b'}' | b']') | None) {
                return Some(());
            }
        }
    }

    fn skip_text(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match *self.json.get(self.at)? {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                _ => self.at += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::revision_at;

    #[test]
    fn finds_only_the_objects_own_revision() {
        let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"resourceVersion":"","a\"":"}{"},"name":"a","resourceVersion":"","uid":"u"},"spec":{}}"#;
        let at = revision_at(json).unwrap();
        assert_eq!(&json[at..at + 6], br#"","uid"#);
        assert_eq!(
            revision_at(br#"{"kind":"Pod","spec":{"metadata":{"resourceVersion":""}}}"#),
            None
        );
        assert_eq!(
            revision_at(br#"{"metadata":{"annotations":{"resourceVersion":""}}}"#),
            None
        );
        assert_eq!(revision_at(br#"{"metadata":{"resourceVersion":"7"}}"#), None);
        assert_eq!(
            revision_at(br#"{"metadata":{"labels":{},"resourceVersion":""}}"#),
            Some(44)
        );
    }
}
