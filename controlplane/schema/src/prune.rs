//! Pruning of unknown fields (`pkg/apiserver/schema/pruning/algorithm.go`).

use serde_json::Value;

use crate::structural::{Additional, META, Node};

/// Prunes a whole object, except for `apiVersion`, `kind` and `metadata`. Returns the paths of the
/// removed fields, sorted.
pub(crate) fn object(node: &Node, value: &mut Value) -> Vec<String> {
    run(Some(node), value, true)
}

/// Prunes a value that is no whole object, unless it is an embedded resource.
pub(crate) fn value(node: &Node, value: &mut Value) -> Vec<String> {
    run(Some(node), value, node.is_embedded())
}

fn run(node: Option<&Node>, value: &mut Value, is_object: bool) -> Vec<String> {
    let mut prune = Prune::default();
    prune.at(node, value, is_object);
    prune.dropped.sort_unstable();
    prune.dropped
}

#[derive(Default)]
struct Prune {
    path: String,
    dropped: Vec<String>,
}

impl Prune {
    fn at(&mut self, node: Option<&Node>, value: &mut Value, is_object: bool) {
        match value {
            Value::Object(members) => {
                let is_kept = node.is_some_and(Node::preserves_unknown_fields);
                members.retain(|name, value| {
                    if is_object && META.contains(&name.as_str()) {
                        return true;
                    }
                    let below = node.and_then(|node| node.member(name));
                    let is_known = below.is_some() || node.is_some_and(|node| node.additional().is_some());
                    if is_known {
                        self.below_member(below, name, value);
                    } else if !is_kept {
                        self.drop(name);
                    }
                    is_known || is_kept
                });
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.push_index(index);
                    match node {
                        Some(node) if node.preserves_unknown_fields() => self.kept_item(node, item),
                        node => self.below(node.and_then(Node::items), item),
                    }
                    self.path.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Items of a list that preserves unknown fields: fields without a schema are kept.
    fn kept_item(&mut self, node: &Node, item: &mut Value) {
        if let Some(items) = node.items() {
            self.preserving(items, item);
        }
    }

    /// Like [`Self::at`], for a schema inside a list that preserves unknown fields.
    fn preserving(&mut self, node: &Node, value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if node.is_embedded() && META.contains(&name.as_str()) {
                        continue;
                    }
                    let below = node.member(name);
                    if below.is_some() || node.additional().is_some() {
                        self.below_member(below, name, value);
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.push_index(index);
                    self.kept_item(node, item);
                    self.path.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn below(&mut self, node: Option<&Node>, value: &mut Value) {
        self.at(node, value, node.is_some_and(Node::is_embedded));
    }

    fn below_member(&mut self, node: Option<&Node>, name: &str, value: &mut Value) {
        let length = self.path.len();
        self.push(name);
        self.below(node, value);
        self.path.truncate(length);
    }

    fn push(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn push_index(&mut self, index: usize) {
        self.path.push('[');
        self.path.push_str(&index.to_string());
        self.path.push(']');
    }

    fn drop(&mut self, name: &str) {
        // At the root they are known, with or without a schema.
        if self.path.is_empty() && META.contains(&name) {
            return;
        }
        let length = self.path.len();
        self.push(name);
        self.dropped.push(self.path.clone());
        self.path.truncate(length);
    }
}

impl Node {
    /// Schema of a field, declared or additional.
    pub(crate) fn member(&self, name: &str) -> Option<&Self> {
        self.property(name).or(match self.additional() {
            Some(Additional::Schema(node)) => Some(node),
            Some(Additional::Any(_)) | None => None,
        })
    }
}
