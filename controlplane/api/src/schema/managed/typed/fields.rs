//! Field set of an applied object.

use std::collections::BTreeMap;

use super::key;
use super::shape::Types;
use super::types::Type;
use crate::schema::managed::raw;
use crate::schema::managed::set::{Node, Set};

/// The fields of an object, given as compact JSON: its leaves, the items of its lists and the
/// members of its maps.
pub(in crate::schema::managed) fn fields(types: Types<'_>, object: &str) -> Set {
    node(Type::of_object(types), object).children
}

fn node(kind: Type<'_>, value: &str) -> Node {
    if kind.is_whole(value) {
        return Node::leaf();
    }
    let mut own = Node::default();
    if kind.is_list() {
        let mut elements: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for item in raw::items(value) {
            if let Ok(element) = key::of_item(kind, item) {
                elements.entry(element).or_default().push(item);
            }
        }
        for (element, items) in elements {
            let mut below = match items.as_slice() {
                [only] => node(kind.item(), only),
                _ => Node::default(),
            };
            below.member = true;
            own.children.add(&element, below);
        }
        return own;
    }
    for (name, value) in raw::members(value) {
        let mut below = node(kind.member(&name), value);
        below.member |= matches!(value, "null" | "{}") || kind.is_map_at(&name);
        own.children.add(&format!("f:{name}"), below);
    }
    own
}

/// Set with the structs above its fields added: the owner of `spec.replicas` also owns `spec`.
pub(in crate::schema::managed) fn with_structs(types: Types<'_>, set: &Set) -> Set {
    above(Type::of_object(types), set)
}

fn above(kind: Type<'_>, set: &Set) -> Set {
    let mut whole = Set::default();
    for (element, node) in set.items() {
        let (below, named) = match element.strip_prefix("f:") {
            Some(name) => (kind.member(name), kind.declares(name)),
            None => (kind.item(), false),
        };
        let children = above(below, &node.children);
        let member = node.member || (named && !children.is_empty());
        whole.add(element, Node { member, children });
    }
    whole
}
