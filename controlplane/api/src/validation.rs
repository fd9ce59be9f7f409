//! Rules that several kinds share, with upstream's paths and texts (`k8s.io/kubernetes/pkg/apis/core/validation`).

pub mod metadata;

use crate::invalid::Invalid;

/// Upstream's text for a field that may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// One error for each message about one value.
pub(crate) fn each(errors: &mut Vec<Invalid>, field: &str, value: &str, messages: Vec<String>) {
    errors.extend(
        messages
            .into_iter()
            .map(|message| Invalid::value(field, value, message)),
    );
}

/// An error when a number is negative.
pub(crate) fn non_negative(errors: &mut Vec<Invalid>, field: &str, value: i64) {
    if value < 0 {
        errors.push(Invalid::value(field, value, "must be greater than or equal to 0"));
    }
}

/// An error when a field changed; the value is shown as JSON.
pub(crate) fn immutable<T: PartialEq + serde::Serialize>(errors: &mut Vec<Invalid>, field: &str, new: &T, old: &T) {
    if new != old {
        let value = serde_json::to_string(new).unwrap_or_default();
        errors.push(Invalid::rendered(field, value, IMMUTABLE));
    }
}
