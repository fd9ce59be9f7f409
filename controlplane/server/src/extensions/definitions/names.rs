//! Fields that the server itself sets in a definition: accepted names and conditions, in the same
//! commit as the change, and the mark of its deletion.

use api::Object;
use api::kinds::custom_resource_definition::{FINALIZER, GROUP, names};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use store::Guard;
use tokio::sync::MutexGuard;

use super::{PLURAL, prefix};
use crate::request::context::Context;

/// Names of a definition, which are valid if no definition changes before the commit: each may take
/// a name that another one wants.
pub(crate) struct Names<'c> {
    /// Serializes the writers of this server, so that only those of other servers conflict.
    _turn: Option<MutexGuard<'c, ()>>,
    since: u64,
}

impl Names<'_> {
    /// Precondition that no definition has changed meanwhile.
    pub(crate) fn guard(&self) -> Guard {
        Guard::Unchanged {
            prefix: prefix(),
            since: self.since,
        }
    }
}

/// Updates a definition's status to its spec and the other definitions of its group, serialized
/// with their writes. The returned value must be held until the commit is done.
pub(crate) async fn settle<'c>(context: &'c Context, object: &mut dyn Object) -> Option<Names<'c>> {
    if context.registration.group != GROUP || context.registration.plural != PLURAL {
        return None;
    }
    // No namespace has such a name.
    let turn = context.server.quota_queues.turn("/definitions").await;
    // Read before the table, which may be newer.
    let since = *context.store().last_change(&prefix()).borrow();
    if let Some(definition) = object.as_any_mut().downcast_mut::<CustomResourceDefinition>() {
        let taken = context.server.definitions.current().taken(definition);
        names::settle(definition, &taken, context.now());
    }
    Some(Names { _turn: turn, since })
}

/// Marks a definition that is asked to go, so that its objects go first (`Delete` of
/// `pkg/registry/customresourcedefinition/etcd.go`).
pub(crate) fn mark_deleted(object: &mut dyn Object, now: Timestamp) {
    let Some(definition) = object.as_any_mut().downcast_mut::<CustomResourceDefinition>() else {
        return;
    };
    if definition.metadata.deletion_timestamp.is_some() {
        return;
    }
    let finalizers = definition.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|own| own == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let condition = names::condition("Terminating", true, "InstanceDeletionPending", message);
    names::set(definition.status.get_or_insert_default(), condition, now);
}
