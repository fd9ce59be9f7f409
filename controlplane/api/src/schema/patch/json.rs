//! JSON patch (RFC 6902), with the quirks of the Go library that upstream uses
//! (`gopkg.in/evanphx/json-patch.v4`): negative indices count from the end, an absent member of an
//! object is `null` for `test` and `copy` and is added by `replace`, and the whole document can be
//! replaced and tested, but not added, moved or copied.

use serde_json::Value;

use super::PatchError;
use crate::value::bounds::{Exceeded, MAX_DEPTH};

/// Maximum number of operations in a patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Maximum size that the `copy` operations of one patch may add to a document, in bytes of JSON.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Maximum number of list items that the operations of one patch may shift, plus the number of
/// values that they may move inside other values.
const MAX_MOVED_ITEMS: usize = 50_000_000;

/// Cost of a patch so far.
#[derive(Default)]
struct Spent {
    copied: usize,
    moved: usize,
}

impl Spent {
    fn shift(&mut self, items: usize) -> Result<(), String> {
        self.moved = self.moved.saturating_add(items);
        if self.moved > MAX_MOVED_ITEMS {
            return Err(format!("the patch moves more than {MAX_MOVED_ITEMS} items of lists"));
        }
        Ok(())
    }

    /// Rejects a value that would nest the document deeper than a body may be: recursive readers
    /// would overflow.
    fn put(&mut self, path: &str, value: &Value) -> Result<(), String> {
        let mut seen = 0;
        let above = path.matches('/').count();
        let room = MAX_DEPTH.checked_sub(above);
        if !room.is_some_and(|room| fits(value, room, &mut seen)) {
            return Err(Exceeded::Depth.to_string());
        }
        self.shift(seen)
    }
}

/// True if a value has at most this number of levels; counts the values that it visits.
fn fits(value: &Value, room: usize, seen: &mut usize) -> bool {
    *seen += 1;
    let within = |inner: &Value| room.checked_sub(1).is_some_and(|room| fits(inner, room, seen));
    match value {
        Value::Object(members) => room > 0 && members.values().all(within),
        Value::Array(items) => room > 0 && items.iter().all(within),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Checks the number of operations of a patch before anything is built from it. The decoder rejects
/// a patch that is not an array.
///
/// # Errors
/// [`PatchError::TooManyOperations`]
pub fn check_count(patch: &[u8]) -> Result<(), PatchError> {
    let operations: Vec<serde::de::IgnoredAny> = serde_json::from_slice(patch).unwrap_or_default();
    limit(operations.len())
}

fn limit(got: usize) -> Result<(), PatchError> {
    if got > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations {
            limit: MAX_OPERATIONS,
            got,
        });
    }
    Ok(())
}

/// Applies the array of operations `patch` to `document`, in order. After an error the caller must
/// discard the document.
///
/// # Errors
/// [`PatchError::Malformed`] if the patch is not an array of objects,
/// [`PatchError::TooManyOperations`], and [`PatchError::Unprocessable`] if an operation is
/// incomplete or does not fit the document.
pub fn apply(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(malformed(patch, "[]jsonpatch.Operation"));
    };
    limit(operations.len())?;
    if let Some(other) = operations.iter().find(|operation| !operation.is_object()) {
        return Err(malformed(other, "jsonpatch.Operation"));
    }
    let mut spent = Spent::default();
    operations
        .iter()
        .try_for_each(|operation| step(document, operation, &mut spent).map_err(PatchError::Unprocessable))
}

/// Go's error message for decoding a value into another type.
pub fn mismatch(value: &Value, target: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go value of type {target}")
}

fn malformed(value: &Value, target: &str) -> PatchError {
    PatchError::Malformed(mismatch(value, target))
}

fn step(document: &mut Value, operation: &Value, spent: &mut Spent) -> Result<(), String> {
    let kind = operation.get("op").and_then(Value::as_str).unwrap_or("unknown");
    match kind {
        "add" => {
            let path = path_of(operation, "path", kind)?;
            add(document, path, value_of(operation), kind, spent)
        }
        "remove" => {
            let path = path_of(operation, "path", kind)?;
            remove(document, path, kind, spent).map(drop)
        }
        "replace" => {
            let path = path_of(operation, "path", kind)?;
            replace(document, path, value_of(operation), spent)
        }
        "move" => {
            let from = path_of(operation, "from", kind)?;
            let value = remove(document, from, kind, spent)?;
            add(document, path_of(operation, "path", kind)?, value, kind, spent)
        }
        "copy" => {
            let from = path_of(operation, "from", kind)?;
            let path = path_of(operation, "path", kind)?;
            let value = copy_of(document, from, &mut spent.copied)?;
            add(document, path, value, kind, spent)
        }
        "test" => {
            let path = path_of(operation, "path", kind)?;
            test(document, path, operation.get("value").unwrap_or(&Value::Null))
        }
        other => Err(format!("Unexpected kind: {other}")),
    }
}

fn path_of<'o>(operation: &'o Value, member: &str, kind: &str) -> Result<&'o str, String> {
    operation
        .get(member)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{kind} operation failed to decode {member}: missing value"))
}

fn value_of(operation: &Value) -> Value {
    operation.get("value").cloned().unwrap_or(Value::Null)
}

/// Container at the end of a path, and the last part of the path, unescaped.
fn container<'d>(
    document: &'d mut Value,
    path: &str,
    (kind, end): (&str, &str),
) -> Result<(&'d mut Value, String), String> {
    let missing = || {
        let place = match kind {
            "add" | "remove" => format!("doc is missing path: \"{path}\""),
            "test" => format!("is missing path: {path}"),
            _ => format!("doc is missing {end}path: {path}"),
        };
        format!("{kind} operation does not apply: {place}: missing value")
    };
    let (parents, last) = path.rsplit_once('/').ok_or_else(missing)?;
    let mut current = document;
    for part in parents.split('/').skip(1) {
        let part = unescape(part);
        current = match current {
            Value::Object(members) => members.get_mut(&part),
            Value::Array(items) => existing(items.len(), &part).ok().and_then(|index| items.get_mut(index)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
        .ok_or_else(missing)?;
    }
    match current {
        Value::Object(_) | Value::Array(_) => Ok((current, unescape(last))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing()),
    }
}

fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// Index of an existing item.
fn existing(length: usize, part: &str) -> Result<usize, String> {
    position(length, part).and_then(|index| {
        if index < length {
            Ok(index)
        } else {
            Err(invalid_index(part))
        }
    })
}

/// Index into a list of `length` items; negative ones count from its end.
fn position(length: usize, part: &str) -> Result<usize, String> {
    let index: i64 = part.parse().map_err(|_error| {
        format!("value was not a proper array index: '{part}': strconv.Atoi: parsing {part:?}: invalid syntax")
    })?;
    let distance = usize::try_from(index.unsigned_abs()).map_err(|_too_large| invalid_index(part))?;
    if index < 0 {
        length.checked_sub(distance).ok_or_else(|| invalid_index(part))
    } else {
        Ok(distance)
    }
}

fn invalid_index(part: &str) -> String {
    format!("Unable to access invalid index: {part}: invalid index referenced")
}

fn add(document: &mut Value, path: &str, value: Value, kind: &str, spent: &mut Spent) -> Result<(), String> {
    spent.put(path, &value)?;
    let (container, key) = container(document, path, (kind, "destination "))?;
    match container {
        Value::Object(members) => {
            members.insert(key, value);
        }
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let failed = |error| format!("error in {kind} for path: '{path}': {error}");
            // A negative index inserts after the item that it would remove.
            let index = position(items.len() + usize::from(key.starts_with('-')), &key).map_err(failed)?;
            if index > items.len() {
                return Err(failed(invalid_index(&key)));
            }
            spent.shift(items.len() - index)?;
            items.insert(index, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, kind: &str, spent: &mut Spent) -> Result<Value, String> {
    let (container, key) = container(document, path, (kind, "from "))?;
    let failed = |error| format!("error in {kind} for path: '{path}': {error}");
    match container {
        Value::Object(members) => members
            .remove(&key)
            .ok_or_else(|| failed(format!("Unable to remove nonexistent key: {key}: missing value"))),
        Value::Array(items) => {
            let index = existing(items.len(), &key).map_err(failed)?;
            spent.shift(items.len() - index)?;
            Ok(items.remove(index))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(Value::Null),
    }
}

fn replace(document: &mut Value, path: &str, value: Value, spent: &mut Spent) -> Result<(), String> {
    spent.put(path, &value)?;
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err("replace operation value must be object or array".to_owned());
        }
        *document = value;
        return Ok(());
    }
    let (container, key) = container(document, path, ("replace", ""))?;
    if let Value::Object(members) = container {
        members.insert(key, value);
        return Ok(());
    }
    *lookup(container, &key)
        .ok_or_else(|| format!("replace operation does not apply: doc is missing key: {path}: missing value"))? = value;
    Ok(())
}

fn lookup<'c>(container: &'c mut Value, key: &str) -> Option<&'c mut Value> {
    match container {
        Value::Object(members) => members.get_mut(key),
        Value::Array(items) => existing(items.len(), key).ok().and_then(|index| items.get_mut(index)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn copy_of(document: &mut Value, from: &str, copied: &mut usize) -> Result<Value, String> {
    let (container, key) = container(document, from, ("copy", "from "))?;
    if let Value::Array(items) = &container {
        existing(items.len(), &key).map_err(|error| format!("error in copy for from: '{from}': {error}"))?;
    }
    let Some(value) = lookup(container, &key).map(|value| value.clone()) else {
        return Ok(Value::Null);
    };
    *copied += value.to_string().len();
    if *copied > MAX_COPIED_BYTES {
        return Err(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
        ));
    }
    Ok(value)
}

fn test(document: &mut Value, path: &str, expected: &Value) -> Result<(), String> {
    let found = if path.is_empty() {
        Some(document)
    } else {
        let (container, key) = container(document, path, ("test", ""))?;
        if let Value::Array(items) = &container {
            existing(items.len(), &key).map_err(|error| format!("error in test for path: '{path}': {error}"))?;
        }
        lookup(container, &key)
    };
    if found.as_deref().unwrap_or(&Value::Null) == expected {
        Ok(())
    } else {
        Err(format!("testing value {path} failed: test failed"))
    }
}
