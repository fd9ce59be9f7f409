//! Merges the fields that a mutating admission policy sets as server-side apply does, but without
//! making a manager their owner (`ApplyStructuredMergeDiff` of
//! `k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch/smd.go`).

use serde_json::Value;
use thiserror::Error;

use super::set::shown;
use super::typed::check;
use super::typed::merge::merge;
use super::typed::shape::{Shape, Types};
use super::typed::types::Type;

/// Error of applying a mutation.
#[derive(Debug, Error)]
pub enum Unmergeable {
    /// It does not fit the schema.
    #[error("failed to convert patch object to typed object: {0}")]
    Unfit(String),
    /// The configuration sets atomic values, which may remove unknown parts.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}", .0.join(", "))]
    Atomic(Vec<String>),
}

/// Live object with the fields of a configuration set.
///
/// # Errors
/// See [`Unmergeable`].
pub fn set<'s>(types: impl Into<Types<'s>>, live: &Value, configuration: &Value) -> Result<Value, Unmergeable> {
    let types = types.into();
    let found = check::check(types, configuration);
    if !found.is_empty() {
        return Err(Unmergeable::Unfit(check::joined(&found)));
    }
    let mut atomic = Vec::new();
    find_atomic(Type::of_object(types), configuration, "", &mut atomic);
    if !atomic.is_empty() {
        return Err(Unmergeable::Atomic(atomic));
    }
    Ok(merge(types, live, configuration))
}

fn find_atomic(kind: Type<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    if matches!(kind, Type::Scalar(_)) {
        return;
    }
    match value {
        Value::Object(members) => {
            if kind.is_atomic() {
                found.push(path.to_owned());
            }
            for (name, member) in members.iter().filter(|(name, _)| kind.declares(name)) {
                let path = format!("{path}{}", shown(&format!("f:{name}")));
                find_atomic(kind.member(name), member, &path, found);
            }
        }
        Value::Array(items) => {
            if kind.is_atomic() || matches!(kind, Type::Shape(Shape::Deduced)) {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                find_atomic(kind.item(), item, &format!("{path}[{index}]"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
