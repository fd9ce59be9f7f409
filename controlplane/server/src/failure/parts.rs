//! What failures are about, and why.

use std::borrow::Cow;

/// A resource of a group, as messages name it: `pods`, `deployments.apps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupResource {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// Plural name (or a kind, where upstream puts the kind there).
    pub resource: Cow<'static, str>,
}

impl GroupResource {
    /// From static names, as registrations carry them.
    pub fn new(group: impl Into<Cow<'static, str>>, resource: impl Into<Cow<'static, str>>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            formatter.write_str(&self.resource)
        } else {
            write!(formatter, "{}.{}", self.resource, self.group)
        }
    }
}

/// The object that a failure is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its resource.
    pub resource: GroupResource,
    /// Its name; empty where there is none.
    pub name: String,
}

/// One cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `NamespaceTerminating` …
    pub reason: Cow<'static, str>,
    /// Path of the field, empty when there is none.
    pub field: String,
    /// The error without the field's path.
    pub message: String,
    /// The whole error as the object's message lists it.
    pub text: String,
}

impl From<&api::Invalid> for Cause {
    fn from(invalid: &api::Invalid) -> Self {
        Self {
            reason: invalid.reason().into(),
            field: invalid.field.clone(),
            message: invalid.body(),
            text: invalid.to_string(),
        }
    }
}
