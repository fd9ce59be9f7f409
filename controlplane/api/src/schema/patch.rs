//! The three kinds of patch that clients send, applied to JSON documents.
//!
//! * [`json`]: `application/json-patch+json`, RFC 6902.
//! * [`merge`]: `application/merge-patch+json`, RFC 7396.
//! * [`strategic`]: `application/strategic-merge-patch+json`, which merges lists by the keys of a
//!   [`Schema`](crate::schema::Schema).
//!
//! All three work in place; after an error the document is in an unspecified state and must be
//! thrown away.

pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;

/// Error of applying a patch. The variants are upstream's responses; `Display` is upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed: 400 `BadRequest` with this text.
    #[error("{0}")]
    Malformed(String),
    /// More operations than are allowed: 413 `RequestEntityTooLarge` with this text.
    #[error("The allowed maximum operations in a JSON patch is {limit}, got {got}")]
    TooManyOperations {
        /// Maximum number of operations.
        limit: usize,
        /// Number of operations in the patch.
        got: usize,
    },
    /// A well-formed patch does not fit the document: 422 `Invalid`. Upstream's response hides this
    /// text behind "the server rejected our request due to an error in our request".
    #[error("{0}")]
    Unprocessable(String),
    /// The lists cannot be merged, such as for an item without its merge key: 500 `InternalError`
    /// with this text.
    #[error("{0}")]
    Unmergeable(String),
}

/// Removes null members of an object that is new, also in its lists.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
