//! The order of merged lists: `$setElementOrder` first, then the order in the patch, then the order
//! on the server.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::Value;

use super::lists::{self, element_type, key_of};
use super::{DIRECTIVE, Known, without_directives};
use crate::schema::patch::PatchError;
use crate::value::go;

/// Merges the list `patch` into `original`: common items keep the patch's order, the rest the
/// original's.
pub(super) fn merge(original: Vec<Value>, patch: Vec<Value>, known: Known) -> Result<Vec<Value>, PatchError> {
    let merged = lists::merge(original, patch, known)?;
    normalize(merged.items, &merged.patch, &merged.original, known.merge_key())
}

/// Merges `changes` into `before` and sorts the items in the order `wanted`; items that only the
/// server has keep their positions relative to their neighbors.
pub(super) fn set(
    before: Option<Vec<Value>>,
    changes: Option<Vec<Value>>,
    wanted: &[Value],
    known: Known,
) -> Result<Vec<Value>, PatchError> {
    let key = known.merge_key();
    if let Some(changes) = &changes {
        check(changes, wanted, key)?;
    }
    let server = before.clone().unwrap_or_default();
    let merged = match (before, changes) {
        (Some(before), Some(changes)) if known.merges() => merge(before, changes, known)?,
        (Some(_), Some(changes)) => changes,
        (None, Some(changes)) => changes.into_iter().filter_map(without_directives).collect(),
        (before, None) => before.unwrap_or_default(),
    };
    normalize(merged, wanted, &server, key)
}

/// Checks that every item of the patch occurs in the wanted order.
fn check(changes: &[Value], wanted: &[Value], key: &str) -> Result<(), PatchError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut rest = wanted.iter();
    for change in changes.iter().filter(|change| change.get(DIRECTIVE).is_none()) {
        let identity = identity(change, key)?;
        let mut found = false;
        for candidate in rest.by_ref() {
            if self::identity(candidate, key)? == identity {
                found = true;
                break;
            }
        }
        if !found {
            let text = |list: &[Value]| go::text(&Value::Array(list.to_vec()));
            return Err(PatchError::Unmergeable(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                text(changes),
                text(wanted)
            )));
        }
    }
    Ok(())
}

/// Identity of an item: its merge key's value, or the scalar itself.
fn identity(item: &Value, key: &str) -> Result<String, PatchError> {
    if key.is_empty() {
        Ok(item.to_string())
    } else {
        key_of(item, key).map(Value::to_string)
    }
}

/// Sorts items that `patch` names in its order and the others in the order of `server`, interleaved
/// so that an item of the server stays before the patched item that followed it there.
fn normalize(merged: Vec<Value>, patch: &[Value], server: &[Value], key: &str) -> Result<Vec<Value>, PatchError> {
    element_type(&[&merged])?;
    let (in_patch, on_server) = (ranks(patch, key)?, ranks(server, key)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        let identity = identity(&item, key)?;
        let place = (in_patch.get(&identity).copied(), on_server.get(&identity).copied());
        let side = if place.0.is_some() { &mut named } else { &mut others };
        side.push((place, item));
    }
    named.sort_by_key(|(place, _)| place.0);
    others.sort_by(|((_, left), _), ((_, right), _)| match (left, right) {
        (Some(left), Some(right)) => left.cmp(right),
        (None, _) | (_, None) => Ordering::Equal,
    });
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut all = Vec::with_capacity(named.len() + others.len());
    while let (Some(((_, left), _)), Some(((_, right), _))) = (others.peek(), named.peek()) {
        let server_first = matches!((left, right), (Some(left), Some(right)) if left < right);
        all.extend(if server_first { others.next() } else { named.next() }.map(|(_, item)| item));
    }
    all.extend(others.map(|(_, item)| item));
    all.extend(named.map(|(_, item)| item));
    Ok(all)
}

/// First position of each item.
fn ranks(items: &[Value], key: &str) -> Result<BTreeMap<String, usize>, PatchError> {
    let mut ranks = BTreeMap::new();
    for (rank, item) in items.iter().enumerate() {
        ranks.entry(identity(item, key)?).or_insert(rank);
    }
    Ok(ranks)
}
