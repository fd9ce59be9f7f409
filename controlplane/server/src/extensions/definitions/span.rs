//! The revisions for which the rows of a definition stay the same, for watches of its objects.

use std::sync::Arc;

use api::Row;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use store::{Event, EventKind, Store, Watch, WatchError};

use super::{Definitions, Made, prefix};

/// A definition, followed until it is deleted or has other versions, schemas or names: other rows
/// or none then serve its objects (`updateCustomResourceDefinition` of
/// `pkg/apiserver/customresource_handler.go`).
pub(crate) struct Span {
    changes: Watch,
    name: String,
    made: Arc<Made>,
    /// Revision up to which changes were looked at.
    seen: u64,
    /// Revision of the change that ended the rows.
    ended: Option<u64>,
}

impl Definitions {
    /// Follows the definition of a row from now on.
    ///
    /// # Errors
    /// Errors of a watch that begins now.
    pub(crate) fn span(&self, store: &Store, row: &Row) -> Result<Span, WatchError> {
        // Read before the table: changes in between are looked at again.
        let seen = store.revision();
        let table = self.current();
        let name = format!("{}.{}", row.plural, row.group);
        let now = table.kinds.find(row.group, row.version, row.plural);
        let is_served = now.is_some_and(|now| now.is(row));
        Ok(Span {
            changes: store.watch(&prefix(), seen)?,
            made: table
                .by_definition
                .get(&name)
                .map(|(_, made)| Arc::clone(made))
                .unwrap_or_default(),
            name,
            seen,
            ended: (!is_served).then_some(0),
        })
    }
}

impl Span {
    /// Revision of the end of the rows, if it is known.
    pub(crate) const fn known(&self) -> Option<u64> {
        self.ended
    }

    /// True if a change at a published revision comes after the end of the rows.
    pub(crate) async fn is_over(&mut self, revision: u64) -> bool {
        while self.ended.is_none() && self.seen < revision {
            self.seen = self.changes.progress();
            if self.seen < revision {
                let changed = self.changes.next().await;
                self.look(changed);
            }
        }
        self.ended.is_some_and(|ended| ended < revision)
    }

    /// Waits for the end of the rows; returns its revision.
    pub(crate) async fn end(&mut self) -> u64 {
        loop {
            if let Some(ended) = self.ended {
                return ended;
            }
            let changed = self.changes.next().await;
            self.look(changed);
        }
    }

    fn look(&mut self, changed: Result<Arc<Event>, WatchError>) {
        match changed {
            Ok(event) if event.entry.key.name() == self.name && !self.outlasts(&event) => {
                self.ended = Some(event.revision);
            }
            Ok(_) => {}
            // Its changes are unknown from now on.
            Err(_) => self.ended = Some(0),
        }
    }

    fn outlasts(&self, event: &Event) -> bool {
        let read = || serde_json::from_slice::<CustomResourceDefinition>(&event.entry.bytes);
        match &event.kind {
            EventKind::Put { .. } => read().is_ok_and(|definition| self.made.is_still(&definition)),
            EventKind::Delete { .. } => false,
        }
    }
}
