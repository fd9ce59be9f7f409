//! Which fields an applied object names.

use std::collections::BTreeMap;

use super::key;
use super::raw;
use super::set::{Node, Set};
use super::types::Type;
use crate::schema::Schema;

/// The fields of an object, given as compact JSON: its leaves, the items of its lists and the members of its maps.
pub(super) fn fields(schema: Schema, object: &str) -> Set {
    node(Type::of_object(schema), object).children
}

fn node(kind: Type, value: &str) -> Node {
    if kind.is_atomic() {
        return Node::leaf();
    }
    let mut own = Node::default();
    match kind {
        Type::List(field) => {
            let mut elements: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for item in raw::items(value) {
                if let Ok(element) = key::of_item(field, item) {
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
        }
        Type::Struct { .. } | Type::Map(_) | Type::Scalar(_) => {
            for (name, value) in raw::members(value) {
                let mut below = node(kind.member(&name), value);
                below.member |= matches!(value, "null" | "{}") || matches!(kind, Type::Map(_));
                own.children.add(&format!("f:{name}"), below);
            }
        }
    }
    own
}

/// The same set with the structs in it that lie above its fields: who has `spec.replicas` has `spec`, too.
pub(super) fn with_structs(schema: Schema, set: &Set) -> Set {
    above(Type::of_object(schema), set)
}

fn above(kind: Type, set: &Set) -> Set {
    let mut whole = Set::default();
    for (element, node) in set.items() {
        let (below, named) = match element.strip_prefix("f:") {
            Some(name) => {
                let named = match kind {
                    Type::Struct { schema, .. } => schema.field(name).is_some(),
                    Type::Map(_) | Type::List(_) | Type::Scalar(_) => false,
                };
                (kind.member(name), named)
            }
            None => (kind.item(), false),
        };
        let children = above(below, &node.children);
        let member = node.member || (named && !children.is_empty());
        whole.add(element, Node { member, children });
    }
    whole
}
