//! Duplicate and unknown fields of JSON requests, named as upstream's strict decoder names them.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The most findings that are reported for one document.
pub const MAX_FINDINGS: usize = 100;

/// The paths of fields that occur twice in one object, each once, in the order of the document: `spec.replicas`,
/// `spec.containers[0].name`. At most [`MAX_FINDINGS`].
///
/// # Errors
/// The text is not JSON, or nested deeper than 128 levels.
pub fn duplicates(json: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let mut walk = Walk {
        path: String::new(),
        found: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Node(&mut walk).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(walk.found)
}

/// Upstream's words for a field that occurs twice.
pub fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

/// Upstream's words for a field that the kind does not have.
pub fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

/// The path that `serde_ignored` reports, as upstream prints it: `spec.containers[0].imagePullPolice`.
pub fn ignored_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    let mut text = match path {
        Path::Root => return String::new(),
        Path::Seq { parent, .. }
        | Path::Map { parent, .. }
        | Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => ignored_path(parent),
    };
    match path {
        Path::Seq { index, .. } => push_index(&mut text, *index),
        Path::Map { key, .. } => push_key(&mut text, key),
        Path::Root | Path::Some { .. } | Path::NewtypeStruct { .. } | Path::NewtypeVariant { .. } => {}
    }
    text
}

fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

fn push_index(path: &mut String, index: usize) {
    // Writing to a String cannot fail.
    write!(path, "[{index}]").unwrap_or_default();
}

struct Walk {
    path: String,
    found: Vec<String>,
}

struct Node<'w>(&'w mut Walk);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let length = self.0.path.len();
        let mut index = 0;
        loop {
            push_index(&mut self.0.path, index);
            let item = items.next_element_seed(Node(self.0))?;
            self.0.path.truncate(length);
            if item.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let length = self.0.path.len();
        let mut seen = BTreeSet::new();
        while let Some(key) = members.next_key::<String>()? {
            push_key(&mut self.0.path, &key);
            if !seen.insert(key) && self.0.found.len() < MAX_FINDINGS && !self.0.found.contains(&self.0.path) {
                self.0.found.push(self.0.path.clone());
            }
            members.next_value_seed(Node(self.0))?;
            self.0.path.truncate(length);
        }
        Ok(())
    }
}
