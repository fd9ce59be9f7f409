//! JSON merge patch (RFC 7396).

use serde_json::{Map, Value};

use super::PatchError;

/// Merges `patch` into `document`: objects recursively, `null` deletes, everything else replaces.
///
/// # Errors
/// [`PatchError::Malformed`] when the patch is not an object.
pub fn apply(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("Invalid JSON Patch".to_owned()));
    }
    merge(document, patch);
    Ok(())
}

fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(document) = document else { return };
    for (key, value) in patch {
        if value.is_null() {
            document.remove(key);
        } else {
            merge(document.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}
