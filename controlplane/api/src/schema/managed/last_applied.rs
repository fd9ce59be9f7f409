//! Last applied configuration of client-side apply: the annotation permits the first server-side
//! apply of an object, and is updated afterwards.

use serde_json::Value;

use super::set::Set;
use super::typed::check;
use super::typed::compare::compare;
use super::typed::fields::fields;
use super::typed::shape::Types;

/// Annotation in which client-side apply keeps the last applied configuration.
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Manager that uses the annotation.
pub(super) const MANAGER: &str = "kubectl";

/// Maximum size of all annotations, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Fields that client-side apply set and that have not changed since: they may be taken without
/// force.
pub(super) fn allowed(types: Types<'_>, api_version: &str, live: &Value) -> Option<Set> {
    let text = annotation(live)?;
    crate::value::bounds::check(text.as_bytes()).ok()?;
    let applied: Value = serde_json::from_str(text).ok()?;
    if applied.get("apiVersion").and_then(Value::as_str) != Some(api_version)
        || !check::check(types, &applied).is_empty()
    {
        return None;
    }
    let applied = applied.to_string();
    let mut own = fields(types, &applied);
    let comparison = compare(types, &applied, &live.to_string());
    own.subtract(&comparison.changed);
    own.subtract(&comparison.removed);
    Some(own)
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

/// Updates an existing annotation to the applied configuration.
pub(super) fn keep_up(object: &mut Value, applied: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = annotations(&mut applied) {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{applied}\n");
    let Some(annotations) = annotations(object) else { return };
    annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

fn annotations(object: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}
