//! Changes that other processes append to a shared ledger, published like this process' own.

use std::collections::HashMap;

use tracing::{error, info};

use super::writer::{Writer, visible};
use crate::backend::{BackendError, Followed, Operation, Record};
use crate::object::entry::{Entry, Event, EventKind};
use crate::object::key::Key;
use crate::read::news::wake;

impl Writer {
    /// Publishes the changes of other processes.
    pub(crate) fn follow(&mut self) -> Result<(), BackendError> {
        if !self.shares {
            return Ok(());
        }
        let followed = self.backend.follow().inspect_err(|failure| {
            error!(error = failure as &dyn std::error::Error, "follow the other processes");
        })?;
        for part in followed {
            match part {
                Followed::Changes(records) => {
                    let events = self.events(records);
                    let woken = self.publish(events);
                    wake(&woken);
                }
                Followed::Anew(loaded) => {
                    info!(revision = loaded.revision, "the ledger is loaded anew");
                    let heads = loaded.heads.into_iter();
                    let entries = heads.map(|head| self.pool.entry(&self.shared.options, head));
                    let entries = entries.collect();
                    self.shared.cache_mut().reset(loaded.revision, entries);
                    self.shared.newest.send_replace(loaded.revision);
                }
            }
        }
        Ok(())
    }

    /// Converts other processes' changes to events.
    fn events(&mut self, records: Vec<Record>) -> Vec<Event> {
        let mut pending: HashMap<Key, Option<Entry>> = HashMap::new();
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            let prev = match pending.get(&record.key) {
                Some(prev) => prev.clone(),
                None => self.shared.cache().get(&record.key).cloned(),
            };
            let (revision, operation) = (record.revision, record.operation);
            let event = Event {
                revision,
                entry: self.pool.entry(&self.shared.options, record),
                kind: match operation {
                    Operation::Create | Operation::Update => EventKind::Put { prev },
                    Operation::Delete => EventKind::Delete { prev },
                },
            };
            pending.insert(event.entry.key.clone(), visible(&event));
            events.push(event);
        }
        events
    }
}
