//! A node of the graph of owners.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::FOREGROUND;
use crate::objects::{Meta, Whatever};
use crate::step::{Outcome, Propagation, Resource, Step, Target};

/// An object with its owner references. The object itself is shared with the cache; two items are
/// equal if their uids are.
#[derive(Clone)]
pub struct Item {
    pub(super) resource: Arc<Resource>,
    object: Arc<dyn Whatever>,
}

impl Item {
    /// Takes an object.
    pub fn of(resource: &Arc<Resource>, object: Arc<dyn Whatever>) -> Self {
        Self {
            resource: Arc::clone(resource),
            object,
        }
    }

    pub(super) fn meta(&self) -> &dyn Meta {
        self.object.any_meta()
    }

    pub(super) fn uid(&self) -> &str {
        self.meta().uid()
    }

    pub(super) fn owners(&self) -> &[OwnerReference] {
        self.meta().owners()
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.meta().is_deleting()
    }

    pub(super) fn target(&self) -> Target {
        let metadata = self.meta();
        Target {
            resource: *self.resource,
            namespace: metadata.namespace().to_owned(),
            name: metadata.name().to_owned(),
            uid: metadata.uid().to_owned(),
        }
    }

    pub(super) fn holds(&self, finalizer: &str) -> bool {
        self.meta().finalizers().iter().any(|held| held == finalizer)
    }

    pub(super) fn waits(&self) -> bool {
        self.is_deleting() && self.holds(FOREGROUND)
    }

    fn patch(&self, change: &serde_json::Value) -> Step {
        let mut metadata = json!({ "uid": self.uid(), "resourceVersion": self.meta().resource_version() });
        if let (Some(metadata), Some(change)) = (metadata.as_object_mut(), change.as_object()) {
            metadata.extend(change.clone());
        }
        self.target().merge(json!({ "metadata": metadata }))
    }

    pub(super) fn without_finalizer(&self, finalizer: &str) -> Step {
        let kept: Vec<_> = self
            .meta()
            .finalizers()
            .iter()
            .filter(|held| *held != finalizer)
            .collect();
        self.patch(&json!({ "finalizers": kept }))
    }

    pub(super) fn without_owners(&self, gone: &BTreeSet<&str>) -> Step {
        let kept: Vec<_> = self
            .owners()
            .iter()
            .filter(|owner| !gone.contains(owner.uid.as_str()))
            .collect();
        self.patch(&json!({ "ownerReferences": kept }))
    }

    /// Stops blocking the deletion of owners.
    pub(super) fn unblocking(&self) -> Step {
        let mut owners = self.owners().to_vec();
        for owner in &mut owners {
            owner.block_owner_deletion = owner.block_owner_deletion.map(|_| false);
        }
        self.patch(&json!({ "ownerReferences": owners }))
    }

    pub(super) fn delete(&self, propagation: Propagation) -> Step {
        Step::Delete {
            target: self.target(),
            resource_version: self.meta().resource_version(),
            propagation: Some(propagation),
            grace_seconds: None,
            outcome: Outcome::default(),
        }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.resource.kind, self.meta().name())
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.uid() == other.uid()
    }
}

impl Eq for Item {}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        self.uid().cmp(other.uid())
    }
}

impl Borrow<str> for Item {
    fn borrow(&self) -> &str {
        self.uid()
    }
}
