//! Uniqueness of list items (`pkg/apiserver/schema/listtype/validation.go`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::path::Path;
use crate::render;
use crate::structural::{ListType, Node};
use crate::{Invalid, InvalidKind};

/// Most errors about one object.
const MAX_FOUND: usize = 200;

/// Finds duplicate items in a whole object.
pub(crate) fn check(node: &Node, value: &Value) -> Vec<Invalid> {
    let mut found = Vec::new();
    if value.is_object() {
        at(node, value, &Path::ROOT, &mut found);
    }
    found
}

fn at(node: &Node, value: &Value, path: &Path<'_>, found: &mut Vec<Invalid>) {
    if found.len() >= MAX_FOUND {
        return;
    }
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if let Some(below) = node.property(name) {
                    at(below, value, &path.child(name), found);
                } else if let Some(below) = node.member(name) {
                    at(below, value, &path.key(name), found);
                }
            }
        }
        Value::Array(items) => {
            match node.list_type() {
                Some(ListType::Set) => {
                    let texts = items.iter().map(ToString::to_string);
                    for index in again(texts) {
                        found.extend(items.get(index).map(|item| duplicate(path, index, item)));
                    }
                }
                Some(ListType::Map) => keyed(node, items, path, found),
                Some(ListType::Atomic) | None => {}
            }
            if let Some(below) = node.items() {
                for (index, item) in items.iter().enumerate() {
                    at(below, item, &path.index(index), found);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn duplicate(path: &Path<'_>, index: usize, value: &Value) -> Invalid {
    Invalid {
        field: path.index(index).to_string(),
        kind: InvalidKind::Duplicate,
        value: Some(render::value(value)),
        detail: String::new(),
    }
}

/// Position of the second occurrence of each text that occurs more than once.
fn again(texts: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, text) in texts.enumerate() {
        let times = seen.entry(text).or_default();
        *times += 1;
        if *times == 2 {
            found.push(index);
        }
    }
    found
}

fn keyed(node: &Node, items: &[Value], path: &Path<'_>, found: &mut Vec<Invalid>) {
    let odd = items.iter().position(|item| !item.is_null() && !item.is_object());
    if let Some((index, item)) = odd.and_then(|index| Some((index, items.get(index)?))) {
        let detail = "must be an object for an array of list-type map";
        found.push(Invalid::rendered(
            path.index(index).to_string(),
            render::value(item),
            detail,
        ));
        return;
    }
    let key = |item: &Value| {
        let own = node
            .list_keys()
            .filter_map(|name| Some((name.to_owned(), item.get(name)?.clone())));
        Value::Object(own.collect::<Map<_, _>>())
    };
    for index in again(items.iter().map(|item| key(item).to_string())) {
        found.extend(items.get(index).map(|item| duplicate(path, index, &key(item))));
    }
}
