//! The ledger in memory: for tests and simulations. Nothing survives it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use super::{Backend, BackendError, Change, History, Loaded, Operation, Record};
use crate::Prefix;

/// A backend without a disk.
#[derive(Debug, Default, Clone)]
pub struct Memory {
    ledger: Arc<RwLock<BTreeMap<u64, Record>>>,
    swept: u64,
}

impl Backend for Memory {
    fn load(&mut self) -> Result<Loaded, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let mut heads = BTreeMap::new();
        for record in ledger.values() {
            match record.operation {
                Operation::Delete => heads.remove(&record.key),
                Operation::Create | Operation::Update => heads.insert(record.key.clone(), record.clone()),
            };
        }
        let revision = ledger.keys().next_back().copied().unwrap_or(0).max(self.swept);
        Ok(Loaded {
            revision,
            floor: self.swept,
            heads: heads.into_values().collect(),
        })
    }

    fn append(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let mut ledger = self.ledger.write().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            if record.drop_previous {
                ledger.remove(&record.previous);
            }
            ledger.insert(record.revision, record.clone());
        }
        Ok(())
    }

    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError> {
        let mut ledger = self.ledger.write().unwrap_or_else(PoisonError::into_inner);
        let window: Vec<(u64, u64, Operation)> = ledger
            .range((Bound::Excluded(self.swept), Bound::Included(floor.max(self.swept))))
            .take(limit)
            .map(|(revision, record)| (*revision, record.previous, record.operation))
            .collect();
        for (revision, previous, operation) in &window {
            ledger.remove(previous);
            if *operation == Operation::Delete {
                ledger.remove(revision);
            }
        }
        let more = window.len() == limit;
        self.swept = match window.last() {
            Some((revision, _, _)) if more => *revision,
            _ => floor.max(self.swept),
        };
        Ok(more)
    }

    fn history(&self) -> Result<Arc<dyn History>, BackendError> {
        Ok(Arc::new(self.clone()))
    }

    fn close(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

impl History for Memory {
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let changes = ledger
            .range((
                Bound::Excluded(after),
                Bound::Included(until.max(after.saturating_add(1))),
            ))
            .filter(|(revision, record)| **revision <= until && prefix.contains(&record.key))
            .take(limit)
            .map(|(_, record)| Change {
                record: record.clone(),
                previous: ledger.get(&record.previous).map(|previous| previous.bytes.clone()),
            });
        Ok(changes.collect())
    }

    fn blocks(&self) -> bool {
        false
    }
}
