//! The ledger in memory, for tests and simulations. It is lost with the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{
    Backend, BackendError, Change, History, Loaded, MOST_BYTES, Moment, Operation, Past, PastError, Record, Since,
};
use crate::{Key, Prefix};

/// A backend without a disk.
#[derive(Debug, Default, Clone)]
pub struct Memory {
    ledger: Arc<RwLock<BTreeMap<u64, Record>>>,
    swept: Arc<AtomicU64>,
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
        let revision = ledger
            .keys()
            .next_back()
            .copied()
            .unwrap_or(0)
            .max(self.swept.load(Ordering::Relaxed));
        Ok(Loaded {
            revision,
            floor: self.swept.load(Ordering::Relaxed),
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
        let swept = self.swept.load(Ordering::Relaxed);
        let window: Vec<(u64, u64, Operation)> = ledger
            .range((Bound::Excluded(swept), Bound::Included(floor.max(swept))))
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
        let reached = match window.last() {
            Some((revision, _, _)) if more => *revision,
            _ => floor.max(swept),
        };
        self.swept.store(reached, Ordering::Relaxed);
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

    fn since(&self) -> Result<Since, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let swept = self.swept.load(Ordering::Relaxed);
        let first = ledger.range(swept.saturating_add(1)..).next();
        Ok(Since {
            revision: swept,
            time: if swept == 0 {
                0
            } else {
                first.map_or(u64::MAX, |(_, record)| record.time)
            },
        })
    }

    fn moment(&self, time: u64) -> Result<Moment, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let swept = self.swept.load(Ordering::Relaxed);
        let later = ledger
            .range(swept.saturating_add(1)..)
            .find(|(_, record)| record.time > time);
        let newest = ledger.keys().next_back().copied().unwrap_or(0);
        let revision = later.map_or(newest, |(revision, _)| revision.saturating_sub(1));
        Ok(Moment { revision, time })
    }

    fn written(&self, revision: u64) -> Result<u64, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        Ok(ledger
            .range(..=revision)
            .next_back()
            .map_or(0, |(_, record)| record.time))
    }

    fn superseded(&self, prefix: &Prefix, only: Option<&Key>, at: Moment) -> Result<Vec<Record>, PastError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let later = ledger.range(at.revision.saturating_add(1)..).map(|(_, later)| later);
        let asked = later.filter(|later| prefix.contains(&later.key) && only.is_none_or(|only| *only == later.key));
        let found: Vec<Record> = asked
            .filter(|later| later.previous <= at.revision)
            .filter_map(|later| match ledger.get(&later.previous) {
                // Without history, the record of a deletion holds the last version.
                None if later.operation == Operation::Delete => Some(Record {
                    revision: later.previous,
                    time: 0,
                    ..later.clone()
                }),
                previous => previous.cloned(),
            })
            .collect();
        if found.iter().map(|record| record.bytes.len()).sum::<usize>() > MOST_BYTES {
            return Err(PastError::TooLarge);
        }
        Ok(found)
    }

    fn versions(&self, key: &Key, before: u64, limit: usize) -> Result<Vec<Past>, PastError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let mut versions: Vec<Past> = Vec::new();
        for (revision, record) in ledger.iter().filter(|(_, record)| record.key == *key) {
            let deleted = record.operation == Operation::Delete;
            if let Some(last) = versions.last_mut().filter(|last| last.revision == record.previous) {
                (last.until, last.ended, last.deleted) = (Some(*revision), record.time, deleted);
            }
            let is_last = deleted && !ledger.contains_key(&record.previous);
            if !deleted || is_last {
                versions.push(Past {
                    revision: if is_last { record.previous } else { *revision },
                    began: if is_last { 0 } else { record.time },
                    until: is_last.then_some(*revision),
                    ended: if is_last { record.time } else { 0 },
                    deleted,
                    bytes: record.bytes.clone(),
                });
            }
        }
        versions.retain(|version| version.revision < before);
        versions.reverse();
        versions.truncate(limit);
        Ok(versions)
    }

    fn deleted(&self, key: &Key) -> Result<u64, BackendError> {
        let ledger = self.ledger.read().unwrap_or_else(PoisonError::into_inner);
        let deletes = |record: &&Record| record.operation == Operation::Delete && record.key == *key;
        Ok(ledger.values().rev().find(deletes).map_or(0, |record| record.revision))
    }

    fn blocks(&self) -> bool {
        false
    }
}
