//! JSON merge patch (RFC 7396).

use serde_json::Value;

use super::{PatchError, discard_nulls};

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

/// Nulls in lists go where nothing was merged with them (`pruneNulls` of
/// `gopkg.in/evanphx/json-patch.v4`).
fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(members) = document else {
        *document = patch.clone();
        discard_nulls(document);
        return;
    };
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}
