//! Correlation of new values with old ones
//! (`k8s.io/apiserver/pkg/cel/common/{equality,maplist}.go`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::structural::{ListType, Node};

/// A value and its old value.
#[derive(Clone, Copy)]
pub(crate) struct Old<'a> {
    node: &'a Node,
    before: &'a Value,
    after: &'a Value,
}

/// Items of an old list by their keys.
pub(crate) struct Keyed<'a> {
    node: &'a Node,
    item: &'a Node,
    items: BTreeMap<String, &'a Value>,
}

impl<'a> Old<'a> {
    pub(crate) fn new(node: &'a Node, old: &'a Value, new: &'a Value) -> Self {
        Self {
            node,
            before: old,
            after: new,
        }
    }

    /// The old value.
    pub(crate) fn before(&self) -> &'a Value {
        self.before
    }

    /// A field that exists in both the old and the new value.
    pub(crate) fn member(&self, name: &str) -> Option<Self> {
        let node = self.node.member(name)?;
        let (old, new) = (self.before.as_object()?.get(name)?, self.after.as_object()?.get(name)?);
        Some(Self::new(node, old, new))
    }

    /// The old items, if they have keys.
    pub(crate) fn keyed(&self) -> Option<Keyed<'a>> {
        if self.node.list_type() != Some(ListType::Map) || self.node.list_keys().len() == 0 {
            return None;
        }
        let mut items = BTreeMap::new();
        for item in self.before.as_array()? {
            if let Some(key) = key(self.node, item) {
                items.entry(key).or_insert(item);
            }
        }
        Some(Keyed {
            node: self.node,
            item: self.node.items()?,
            items,
        })
    }

    /// True if nothing has changed, apart from the order of lists with keys.
    pub(crate) fn is_unchanged(&self) -> bool {
        match (self.before, self.after) {
            (Value::Object(old), Value::Object(new)) => {
                let is_same = |name: &String| self.member(name).is_some_and(|member| member.is_unchanged());
                old.len() == new.len() && new.keys().all(is_same)
            }
            (Value::Array(old), Value::Array(new)) => {
                if old.len() != new.len() {
                    return false;
                }
                let Some(keyed) = self.keyed() else { return old == new };
                let is_same = |item| keyed.item(item).is_some_and(|item| item.is_unchanged());
                new.iter().all(is_same)
            }
            (old, new) => old == new,
        }
    }
}

impl<'a> Keyed<'a> {
    /// The old item with the same key.
    pub(crate) fn item(&self, new: &'a Value) -> Option<Old<'a>> {
        let old = self.items.get(&key(self.node, new)?)?;
        Some(Old::new(self.item, old, new))
    }
}

/// The keys of an item as one text; `None` if one is missing or not a scalar.
fn key(node: &Node, item: &Value) -> Option<String> {
    let members = item.as_object()?;
    let mut text = String::new();
    for name in node.list_keys() {
        let value = members.get(name)?;
        match value {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                text.push('\0');
                text.push_str(&value.to_string());
            }
        }
    }
    Some(text)
}
