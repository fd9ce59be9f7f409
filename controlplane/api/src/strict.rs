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
    let mut walk = Walk::default();
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
    fn walk(path: &Path<'_>, text: &mut FieldPath) {
        match path {
            Path::Root => {}
            Path::Seq { parent, index } => {
                walk(parent, text);
                text.push_index(*index);
            }
            Path::Map { parent, key } => {
                walk(parent, text);
                text.push_key(key);
            }
            Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
                walk(parent, text);
            }
        }
    }
    let mut text = FieldPath::default();
    walk(path, &mut text);
    text.text
}

/// A field's path while a document is walked.
#[derive(Debug, Default)]
pub(crate) struct FieldPath {
    /// What upstream prints.
    pub(crate) text: String,
}

impl FieldPath {
    pub(crate) fn push_key(&mut self, key: &str) {
        if !self.text.is_empty() {
            self.text.push('.');
        }
        self.text.push_str(key);
    }

    pub(crate) fn push_index(&mut self, index: usize) {
        // Writing to a String cannot fail.
        write!(self.text, "[{index}]").unwrap_or_default();
    }
}

#[derive(Default)]
struct Walk {
    path: FieldPath,
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
        let length = self.0.path.text.len();
        let mut index = 0;
        loop {
            self.0.path.push_index(index);
            let item = items.next_element_seed(Node(self.0))?;
            self.0.path.text.truncate(length);
            if item.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let length = self.0.path.text.len();
        let mut seen = BTreeSet::new();
        while let Some(key) = members.next_key::<String>()? {
            self.0.path.push_key(&key);
            if !seen.insert(key) && self.0.found.len() < MAX_FINDINGS && !self.0.found.contains(&self.0.path.text) {
                self.0.found.push(self.0.path.text.clone());
            }
            members.next_value_seed(Node(self.0))?;
            self.0.path.text.truncate(length);
        }
        Ok(())
    }
}
