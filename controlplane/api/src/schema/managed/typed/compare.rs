//! Comparison of two versions of an object by field.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::key;
use super::shape::Types;
use super::types::Type;
use crate::schema::managed::raw;
use crate::schema::managed::set::{Node, Set};

/// Differences between two versions of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that are new, or have another value.
    pub changed: Set,
    /// Fields that are gone.
    pub removed: Set,
}

impl Comparison {
    /// True if no field differs.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// Compares two versions of an object of the kind that `types` describes, both as compact JSON. The
/// JSON of an object that does not exist yet is `{}`.
pub fn compare<'s>(types: impl Into<Types<'s>>, live: &str, new: &str) -> Comparison {
    let found = values(Type::of_object(types.into()), Some(live), Some(new));
    Comparison {
        changed: found.changed.children,
        removed: found.removed.children,
    }
}

/// Difference of one value.
#[derive(Default)]
struct Found {
    changed: Node,
    removed: Node,
}

impl Found {
    /// Adds what was found below.
    fn take(&mut self, element: &str, below: Self) {
        self.changed.children.add(element, below.changed);
        self.removed.children.add(element, below.removed);
    }
}

fn values(kind: Type<'_>, live: Option<&str>, new: Option<&str>) -> Found {
    // A null and a missing member decode to the same object.
    if live == new || matches!((live, new), (None, Some("null")) | (Some("null"), None)) {
        return Found::default();
    }
    let mut found = Found::default();
    let whole = kind.is_atomic()
        || if kind.is_list() {
            !lists(kind, live, new, &mut found)
        } else {
            !maps(kind, live, new, &mut found)
        };
    if live.is_none() || (whole && new.is_some()) {
        found.changed.member = true;
    } else if new.is_none() {
        found.removed.member = true;
    }
    found
}

/// Compares member by member. False if neither side has any: then the values themselves differ.
fn maps(kind: Type<'_>, live: Option<&str>, new: Option<&str>, found: &mut Found) -> bool {
    let (left, right) = (members(live), members(new));
    if left.is_empty() && right.is_empty() {
        return false;
    }
    for (name, value) in &left {
        let other = lookup(&right, name).or_else(|| unset(kind, name, new));
        below(kind, name, Some(value), other, found);
    }
    for (name, value) in &right {
        if lookup(&left, name).is_none() {
            below(kind, name, unset(kind, name, live), Some(value), found);
        }
    }
    true
}

fn below(kind: Type<'_>, name: &str, live: Option<&str>, new: Option<&str>, found: &mut Found) {
    let is_new_null = live.is_none() && new == Some("null");
    if is_new_null && is_always_written(kind, name) {
        // A field that upstream's types always write belongs to the object's creator.
        found.changed.children.add(&format!("f:{name}"), Node::leaf());
    } else if live != new {
        let difference = values(kind.member(name), live, new);
        found.take(&format!("f:{name}"), difference);
    }
}

/// The members of an object, sorted by name.
fn members(value: Option<&str>) -> Vec<(Cow<'_, str>, &str)> {
    let mut members: Vec<_> = raw::members(value.unwrap_or_default()).collect();
    if !members.is_sorted_by(|(left, _), (right, _)| left <= right) {
        members.sort_by(|(left, _), (right, _)| left.cmp(right));
    }
    members
}

fn lookup<'a>(members: &[(Cow<'_, str>, &'a str)], name: &str) -> Option<&'a str> {
    let place = members.binary_search_by(|(own, _)| (**own).cmp(name)).ok()?;
    members.get(place).map(|(_, value)| *value)
}

fn is_always_written(kind: Type<'_>, name: &str) -> bool {
    matches!(kind, Type::Struct { schema, .. } if schema.field(name).is_some_and(|field| field.always_written))
}

/// JSON that upstream's types write for an unset member that ours leave out.
fn unset(kind: Type<'_>, name: &str, parent: Option<&str>) -> Option<&'static str> {
    parent?;
    let Type::Struct { schema, .. } = kind else { return None };
    let field = schema.field(name).filter(|field| field.always_written)?;
    match Type::of_member(Some(field)) {
        Type::Struct { .. } => Some("{}"),
        Type::Map(_) | Type::List(_) | Type::Scalar(_) | Type::Shape(_) => Some("null"),
    }
}

/// Compares item by item. False when neither side has any.
fn lists(kind: Type<'_>, live: Option<&str>, new: Option<&str>, found: &mut Found) -> bool {
    let (left, right) = (items(kind, live), items(kind, new));
    if left.is_empty() && right.is_empty() {
        return false;
    }
    let item = kind.item();
    for (element, ours) in &left {
        let theirs = right.get(element).map_or(&[][..], Vec::as_slice);
        compare_items(item, element, ours, theirs, found);
    }
    for (element, theirs) in right.iter().filter(|(element, _)| !left.contains_key(*element)) {
        compare_items(item, element, &[], theirs, found);
    }
    true
}

/// Items by their path elements; several for one element if they are duplicates.
fn items<'a>(kind: Type<'_>, list: Option<&'a str>) -> BTreeMap<String, Vec<&'a str>> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for item in raw::items(list.unwrap_or_default()) {
        if let Ok(element) = key::of_item(kind, item) {
            found.entry(element).or_default().push(item);
        }
    }
    found
}

/// Compares items that occur once; duplicates are owned together.
fn compare_items(item: Type<'_>, element: &str, left: &[&str], right: &[&str], found: &mut Found) {
    let mut one = |live: Option<&&str>, new: Option<&&str>| {
        found.take(element, values(item, live.copied(), new.copied()));
    };
    match (left, right) {
        ([] | [_], [] | [_]) => one(left.first(), right.first()),
        ([_, _, ..], [_, _, ..]) => {
            if left != right {
                found.changed.children.add(element, Node::leaf());
            }
        }
        ([_, _, ..], _) => {
            if !right.is_empty() {
                one(None, right.first());
            }
            found.removed.children.add(element, Node::leaf());
        }
        (_, [_, _, ..]) => {
            if !left.is_empty() {
                one(left.first(), None);
            }
            found.changed.children.add(element, Node::leaf());
        }
    }
}
