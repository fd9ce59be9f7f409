//! Duplicate and unknown fields of JSON requests, named as upstream's strict decoder names them.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum number of reported errors for one document.
pub const MAX_FINDINGS: usize = 100;

/// The paths of fields that occur twice in one object, each once, in the order of the document:
/// `spec.replicas`, `spec.containers[0].name`. At most [`MAX_FINDINGS`].
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

/// Strict decoding errors, in the order of the document: for a field that is unknown and occurs
/// twice, only that it is unknown.
pub fn complaints(json: &[u8], unknown: &[String], duplicates: &[String]) -> Vec<String> {
    if unknown.is_empty() && duplicates.is_empty() {
        return Vec::new();
    }
    let mut walk = Walk {
        unknown: unknown.iter().map(String::as_str).collect(),
        ..Walk::default()
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    // The JSON was parsed before: errors are reported elsewhere.
    drop(Node(&mut walk).deserialize(&mut deserializer));
    // Fields that were dropped in the conversion from YAML have no position in the JSON; they come
    // last.
    for path in unknown.iter().chain(duplicates) {
        if walk.found.len() < MAX_FINDINGS && !walk.found.contains(path) {
            walk.found.push(path.clone());
        }
    }
    let words = |path: &String| {
        if walk.unknown.contains(path.as_str()) {
            unknown_field(path)
        } else {
            duplicate_field(path)
        }
    };
    walk.found.iter().map(words).collect()
}

/// Strict decoding errors of a custom resource: first the fields that occur twice, then the unknown
/// ones (`schemaCoercingDecoder` of `pkg/apiserver/customresource_handler.go`).
pub fn custom_complaints(unknown: &[String], duplicates: &[String]) -> Vec<String> {
    let duplicates = duplicates.iter().map(|path| duplicate_field(path));
    let unknown = unknown.iter().map(|path| unknown_field(path));
    duplicates.chain(unknown).take(MAX_FINDINGS).collect()
}

/// Upstream's message for a field that occurs twice.
pub fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

/// Upstream's message for an unknown field.
pub fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

/// Path that `serde_ignored` reports, in upstream's notation: `spec.containers[0].imagePullPolice`.
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

/// Maximum length of a reported path, in bytes. Real ones are shorter, but a document can be one
/// long key.
const PATH: usize = 2048;

/// Path of a field during a walk; truncated if it is too long.
#[derive(Debug, Default)]
pub(crate) struct FieldPath {
    /// The path as upstream prints it.
    pub(crate) text: String,
}

impl FieldPath {
    pub(crate) fn push_key(&mut self, key: &str) {
        if !self.text.is_empty() {
            self.push(".");
        }
        self.push(key);
    }

    pub(crate) fn push_index(&mut self, index: usize) {
        self.push(&format!("[{index}]"));
    }

    fn push(&mut self, part: &str) {
        let room = PATH.saturating_sub(self.text.len());
        self.text.push_str(&part[..part.floor_char_boundary(room)]);
    }
}

/// Walk through a document that finds unknown and duplicate fields.
#[derive(Default)]
struct Walk<'u> {
    path: FieldPath,
    unknown: BTreeSet<&'u str>,
    found: Vec<String>,
}

impl Walk<'_> {
    fn meet(&mut self, again: bool) {
        let path = &self.path.text;
        let told = again || self.unknown.contains(path.as_str());
        if told && self.found.len() < MAX_FINDINGS && !self.found.contains(path) {
            self.found.push(path.clone());
        }
    }
}

struct Node<'w, 'u>(&'w mut Walk<'u>);

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
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
            self.0.meet(!seen.insert(key));
            members.next_value_seed(Node(self.0))?;
            self.0.path.text.truncate(length);
        }
        Ok(())
    }
}
