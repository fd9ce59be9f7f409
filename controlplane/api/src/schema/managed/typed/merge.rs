//! Merge of an applied object into the live one, and removal of fields.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};

use super::key;
use super::shape::{Shape, Types};
use super::types::Type;
use crate::schema::managed::set::Set;

/// Merges the applied object's values into the live one. Both fit the schema; the applied one has
/// no duplicates.
pub(in crate::schema::managed) fn merge(types: Types<'_>, live: &Value, applied: &Value) -> Value {
    values(Type::of_object(types), Some(live), Some(applied)).unwrap_or(Value::Null)
}

fn values(kind: Type<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let whole = || applied.or(live).cloned();
    if kind.is_atomic() || (matches!(kind, Type::Shape(Shape::Deduced)) && applied.is_some_and(|own| !own.is_object()))
    {
        return whole();
    }
    if kind.is_list() {
        let (left, right) = (array(live), array(applied));
        if left.is_empty() && right.is_empty() {
            return whole();
        }
        let merged = lists(kind, left, right);
        return (!merged.is_empty()).then_some(Value::Array(merged));
    }
    let empty = Map::new();
    let left = live.and_then(Value::as_object).unwrap_or(&empty);
    let right = applied.and_then(Value::as_object).unwrap_or(&empty);
    if left.is_empty() && right.is_empty() {
        return whole();
    }
    let mut merged = Map::new();
    for (name, value) in left {
        let value = values(kind.member(name), Some(value), right.get(name));
        merged.extend(value.map(|value| (name.clone(), value)));
    }
    for (name, value) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
        let value = values(kind.member(name), None, Some(value));
        merged.extend(value.map(|value| (name.clone(), value)));
    }
    (!merged.is_empty()).then_some(Value::Object(merged))
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Merges lists: applied items in their order, live items between them near their former neighbors.
fn lists(kind: Type<'_>, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let keyed = |items: &[Value]| -> Vec<String> {
        let elements = items.iter().map(|item| key::of_value(kind, item).unwrap_or_default());
        elements.collect()
    };
    let (left, right) = (keyed(live), keyed(applied));
    let mut ours: BTreeMap<&str, Option<&Value>> = BTreeMap::new();
    for (element, item) in left.iter().zip(live) {
        // Duplicates are not merged: the applied item replaces them.
        ours.entry(element).and_modify(|own| *own = None).or_insert(Some(item));
    }
    let theirs: BTreeMap<&str, &Value> = right.iter().map(String::as_str).zip(applied).collect();
    let item = kind.item();
    let mut shared: VecDeque<&str> = right
        .iter()
        .map(String::as_str)
        .filter(|element| ours.contains_key(element))
        .collect();
    let mut left = left.iter().map(String::as_str).zip(live).peekable();
    let mut right = right.iter().map(String::as_str).zip(applied).peekable();
    let mut merged = Vec::with_capacity(live.len().max(applied.len()));
    loop {
        match (left.peek().copied(), right.peek().copied()) {
            (Some((mine, value)), _) if !theirs.contains_key(mine) => {
                merged.extend(values(item, Some(value), None));
                left.next();
            }
            (Some(_), None) => {
                left.next();
            }
            (mine, Some((other, value))) => {
                if let Some((mine, _)) = mine {
                    let is_next = shared.front() == Some(&mine);
                    if mine == other || !is_next {
                        left.next();
                    }
                    if mine != other && !is_next && !shared.is_empty() {
                        // Item of both sides that comes later or has already come.
                        continue;
                    }
                }
                if shared.front() == Some(&other) {
                    shared.pop_front();
                }
                merged.extend(values(item, ours.get(other).copied().flatten(), Some(value)));
                right.next();
            }
            (None, None) => return merged,
        }
    }
}

/// The object without the fields of a set.
pub(in crate::schema::managed) fn without(types: Types<'_>, object: &Value, gone: &Set) -> Value {
    if gone.is_empty() {
        return object.clone();
    }
    remaining(Type::of_object(types), object, gone)
}

fn remaining(kind: Type<'_>, value: &Value, gone: &Set) -> Value {
    match (kind, value) {
        (Type::Scalar(_), value) => value.clone(),
        (Type::Shape(Shape::Deduced), value) if !value.is_object() => value.clone(),
        _ if kind.is_atomic() => Value::Null,
        (_, Value::Array(items)) if kind.is_list() => {
            let kept = items.iter().filter_map(|item| {
                let element = key::of_value(kind, item).unwrap_or_default();
                kept(kind.item(), item, gone, &element)
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        (Type::Struct { .. } | Type::Map(_) | Type::Shape(Shape::Map(_) | Shape::Deduced), Value::Object(members)) => {
            let kept = members.iter().filter_map(|(name, value)| {
                let value = kept(kind.member(name), value, gone, &format!("f:{name}"))?;
                Some((name.clone(), value))
            });
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        _ => Value::Null,
    }
}

/// Member or item of a value, if it is not in the set of removed fields.
fn kept(kind: Type<'_>, value: &Value, gone: &Set, element: &str) -> Option<Value> {
    match gone.get(element) {
        Some(node) if node.member => None,
        Some(node) if !node.children.is_empty() => Some(remaining(kind, value, &node.children)),
        Some(_) | None => Some(value.clone()),
    }
}
