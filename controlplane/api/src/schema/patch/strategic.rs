//! Strategic merge patch: a merge patch that knows the kind, merges lists by key and understands
//! directives.
//!
//! | in the patch | what it does |
//! |---|---|
//! | `null` | deletes the member |
//! | a list of a field with a merge key | items are merged with those that have the same key; the others stay |
//! | a list of scalars of a merged field | adds the missing ones |
//! | `$patch: replace` in an object | the object is replaced by the rest of the patch |
//! | `$patch: delete` in an object | the object becomes empty; in a list item: the item is removed |
//! | `- $patch: replace` in a list | the list is replaced by the other items |
//! | `$retainKeys: [a, b]` | members that are not named are removed |
//! | `$deleteFromPrimitiveList/f: […]` | these scalars are removed from the list `f` |
//! | `$setElementOrder/f: […]` | the order of the list `f` |

mod lists;
mod order;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{PatchError, discard_nulls};
use crate::schema::{Field, Schema};
use crate::value::go;

pub(super) const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `document`, an object of the kind that `schema` describes.
///
/// Members that the schema does not know are merged as in a merge patch, and their lists replaced.
///
/// # Errors
/// [`PatchError::Malformed`] for a patch that is not an object or has a misused directive,
/// [`PatchError::Unprocessable`] for lists in lists, [`PatchError::Unmergeable`] for list items
/// without their merge key and lists of mixed types.
pub fn apply(schema: Schema, document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Malformed("invalid JSON document".to_owned()));
    };
    let original = match document.take() {
        Value::Object(original) => original,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    *document = Value::Object(merge_map(original, patch.clone(), Some(schema))?);
    Ok(())
}

/// Schema of a member while it is merged.
#[derive(Clone, Copy, Default)]
struct Known {
    field: Option<&'static Field>,
    schema: Option<Schema>,
}

impl Known {
    fn of(schema: Option<Schema>, key: &str) -> Self {
        let field = schema.and_then(|schema| schema.field(key));
        Self {
            field,
            schema: field.and_then(Field::message),
        }
    }

    fn merges(self) -> bool {
        self.field.is_some_and(|field| field.patch.merge)
    }

    fn merge_key(self) -> &'static str {
        self.field.map_or("", |field| field.patch.merge_key)
    }
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<Schema>,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            Some(_) | None => Err(bad_directive(&directive, patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_orders(&mut original, &mut patch, schema)?;
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) {
            lists::delete_scalars(&mut original, list, &value)?;
        } else if value.is_null() {
            original.remove(&key);
        } else {
            let known = Known::of(schema, &key);
            let merged = merge_member(original.remove(&key), value, known)?;
            if let Some(merged) = merged {
                original.insert(key, merged);
            }
        }
    }
    Ok(original)
}

fn merge_member(original: Option<Value>, patch: Value, known: Known) -> Result<Option<Value>, PatchError> {
    match (original, patch) {
        (Some(Value::Object(_)), patch @ Value::Object(_)) if known.field.is_some_and(|field| field.patch.replace) => {
            Ok(Some(patch))
        }
        (Some(Value::Object(original)), Value::Object(patch)) => {
            // The values of a map of messages have the message's schema, the map itself has none.
            let schema = if known
                .field
                .is_some_and(|field| field.shape == crate::schema::Shape::One)
            {
                known.schema
            } else {
                None
            };
            merge_map(original, patch, schema).map(Value::Object).map(Some)
        }
        (Some(Value::Array(original)), Value::Array(patch)) if known.merges() => {
            order::merge(original, patch, known).map(Value::Array).map(Some)
        }
        (Some(Value::Array(_)), patch @ Value::Array(_)) => Ok(Some(patch)),
        (_, mut patch) => {
            discard_nulls(&mut patch);
            Ok(without_directives(patch))
        }
    }
}

/// Applies `$retainKeys`: removes members of the original that are not named; those of the patch
/// must be named.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let retained = retained.as_array().ok_or_else(malformed)?;
    let retained: BTreeSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_retained = |key: &String| retained.contains(key.as_str());
    let is_free = |key: &String, value: &Value| {
        value.is_null() || key.starts_with(DELETE_FROM_PRIMITIVE_LIST) || key.starts_with(SET_ELEMENT_ORDER)
    };
    if patch
        .iter()
        .any(|(key, value)| !is_free(key, value) && !is_retained(key))
    {
        return Err(malformed());
    }
    original.retain(|key, _| is_retained(key));
    Ok(())
}

/// Merges the lists that have a `$setElementOrder`, and removes both from the patch.
fn set_orders(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<Schema>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(SET_ELEMENT_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let Some(wanted) = patch.remove(&directive) else {
            continue;
        };
        let key = directive.strip_prefix(SET_ELEMENT_ORDER).unwrap_or_default();
        let Value::Array(wanted) = wanted else {
            return Err(bad_type("[]interface {}", &wanted));
        };
        let before = take_list(original, key)?;
        let changes = take_list(patch, key)?;
        if before.is_none() && changes.is_none() {
            continue;
        }
        let known = Known::of(schema, key);
        let ordered = order::set(before, changes, &wanted, known)?;
        original.insert(key.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

fn take_list(map: &mut Map<String, Value>, key: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match map.get(key) {
        None => Ok(None),
        Some(Value::Array(_)) => match map.remove(key) {
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) | None => Ok(None),
        },
        Some(other) => Err(bad_type("[]interface {}", other)),
    }
}

/// Value with its directives removed; none if it is a directive itself.
pub(super) fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) => {
            if members.contains_key(DIRECTIVE) {
                return None;
            }
            let kept = members.into_iter().filter(|(key, _)| !is_directive(key));
            Some(Value::Object(
                kept.filter_map(|(key, member)| Some((key, without_directives(member)?)))
                    .collect(),
            ))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => Some(scalar),
    }
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(DELETE_FROM_PRIMITIVE_LIST) || key.starts_with(SET_ELEMENT_ORDER)
}

fn bad_directive(directive: &Value, mut patch: Map<String, Value>) -> PatchError {
    patch.insert(DIRECTIVE.to_owned(), directive.clone());
    let map = go::text(&Value::Object(patch));
    PatchError::Unmergeable(format!("unknown patch type: {} in map: {map}", go::text(directive)))
}

fn no_merge_key(item: &Value, key: &str) -> PatchError {
    PatchError::Unmergeable(format!(
        "map: {} does not contain declared merge key: {key}",
        go::text(item)
    ))
}

fn bad_type(expected: &str, found: &Value) -> PatchError {
    PatchError::Unmergeable(format!(
        "expected a {expected}, but received a {}",
        go::type_name(found)
    ))
}
