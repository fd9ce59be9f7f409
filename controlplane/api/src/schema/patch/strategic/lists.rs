//! Merging lists: of scalars as sets, of objects by their merge key.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use serde_json::{Map, Value};

use super::{DIRECTIVE, Known, bad_directive, bad_type, merge_map, no_merge_key, without_directives};
use crate::schema::patch::PatchError;
use crate::value::go;

/// Merged list before sorting.
pub(super) struct Merged {
    pub(super) items: Vec<Value>,
    /// Original without the items that directives removed.
    pub(super) original: Vec<Value>,
    /// Patch without directives.
    pub(super) patch: Vec<Value>,
}

/// Merges the list `patch` into `original`.
pub(super) fn merge(original: Vec<Value>, patch: Vec<Value>, known: Known) -> Result<Merged, PatchError> {
    match element_type(&[&original, &patch])? {
        None => Ok(Merged {
            items: Vec::new(),
            original,
            patch,
        }),
        Some(Element::Scalar) => {
            let mut seen = BTreeSet::new();
            let both = original.iter().chain(&patch);
            let items = both.filter(|item| seen.insert(item.to_string())).cloned().collect();
            Ok(Merged { items, original, patch })
        }
        Some(Element::Object) => {
            let key = known.merge_key();
            if key.is_empty() {
                return Err(PatchError::Unmergeable(
                    "cannot merge lists without merge key for slice".to_owned(),
                ));
            }
            let (original, patch) = apply_directives(original, patch, key)?;
            let items = merge_objects(original.clone(), &patch, key, known)?;
            Ok(Merged { items, original, patch })
        }
    }
}

/// Applies `$deleteFromPrimitiveList/KEY`: removes the scalars of `value` from the list `key`, be it
/// merged or not.
pub(super) fn delete_scalars(original: &mut Map<String, Value>, key: &str, value: &Value) -> Result<(), PatchError> {
    if value.is_null() {
        original.remove(key);
        return Ok(());
    }
    let (Some(Value::Array(items)), Value::Array(gone)) = (original.get_mut(key), value) else {
        return Ok(());
    };
    if element_type(&[items, gone])? == Some(Element::Object) {
        return Err(PatchError::Malformed(
            "invalid patch format of primitive list".to_owned(),
        ));
    }
    // Scalars of one type differ if and only if their texts do.
    let gone: BTreeSet<String> = gone.iter().map(Value::to_string).collect();
    items.retain(|item| !gone.contains(&item.to_string()));
    Ok(())
}

/// Type of a list's items.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Scalar,
    Object,
}

/// Common type of all items of these lists; none if there are no items.
pub(super) fn element_type(lists: &[&[Value]]) -> Result<Option<Element>, PatchError> {
    let mut found: Option<Discriminant<Value>> = None;
    for item in lists.iter().copied().flatten() {
        if item.is_array() {
            return Err(PatchError::Unprocessable("lists of lists are not supported".to_owned()));
        }
        if found.is_some_and(|other| other != discriminant(item)) {
            let texts: Vec<_> = lists
                .iter()
                .map(|list| go::text(&Value::Array(list.to_vec())))
                .collect();
            let message = format!("list element types are not identical: [{}]", texts.join(" "));
            return Err(PatchError::Unmergeable(message));
        }
        found = Some(discriminant(item));
    }
    let is_object = found == Some(discriminant(&Value::Object(Map::new())));
    Ok(found.map(|_| if is_object { Element::Object } else { Element::Scalar }))
}

/// The value of an item's merge key.
pub(super) fn key_of<'v>(item: &'v Value, key: &str) -> Result<&'v Value, PatchError> {
    let members = item
        .as_object()
        .ok_or_else(|| bad_type("map[string]interface {}", item))?;
    members.get(key).ok_or_else(|| no_merge_key(item, key))
}

/// Applies the items that are directives: `$patch: delete` and `$patch: replace`.
fn apply_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut gone = BTreeSet::new();
    for item in patch {
        match item.get(DIRECTIVE).map(Value::as_str) {
            None => rest.push(item),
            Some(Some("delete")) => {
                gone.insert(key_of(&item, key)?.to_string());
            }
            Some(Some("replace")) => replace = true,
            Some(Some("merge")) => {
                let message = "merging lists cannot yet be specified in the patch".to_owned();
                return Err(PatchError::Unmergeable(message));
            }
            Some(Some(_) | None) => {
                let directive = item.get(DIRECTIVE).cloned().unwrap_or_default();
                return Err(bad_directive(&directive, item.as_object().cloned().unwrap_or_default()));
            }
        }
    }
    if replace {
        Ok((rest, Vec::new()))
    } else {
        let stays = |item: &Value| item.get(key).is_none_or(|own| !gone.contains(&own.to_string()));
        if !gone.is_empty() {
            original.retain(stays);
        }
        Ok((original, rest))
    }
}

/// Merges each item of the patch into the first item with its key, or appends it.
fn merge_objects(mut items: Vec<Value>, patch: &[Value], key: &str, known: Known) -> Result<Vec<Value>, PatchError> {
    let mut places = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Some(value) = item.get(key) {
            places.entry(value.to_string()).or_insert(place);
        }
    }
    for change in patch {
        let value = key_of(change, key)?.to_string();
        let found = places.get(&value).and_then(|place| items.get_mut(*place));
        if let (Some(item), Value::Object(change)) = (found, change) {
            let before = item.as_object_mut().map(std::mem::take).unwrap_or_default();
            *item = Value::Object(merge_map(before, change.clone(), known.schema)?);
        } else if let Some(new) = without_directives(change.clone()) {
            places.insert(value, items.len());
            items.push(new);
        }
    }
    Ok(items)
}
