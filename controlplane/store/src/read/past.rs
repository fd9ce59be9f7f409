//! Reads at a point in time: the objects as they were, and the versions of one object.
//!
//! A list at a moment consists of the newest versions that are older than the moment (from the
//! cache) and of those that were the newest at the moment and are superseded now (from the ledger
//! and the archive). They are read in this order: a version only ever moves from the cache to the
//! ledger to the archive, so none is missed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::object::entry::Entry;
use crate::{Attributes, BackendError, Class, Key, Moment, Past, PastError, Prefix, Since, Store};

/// A point in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The time when this revision was the newest.
    Revision(u64),
    /// A time, in milliseconds since 1970.
    Time(u64),
}

/// Objects at a point of the past.
#[derive(Debug, Clone)]
pub struct PastList {
    /// Objects in the order of their keys.
    pub entries: Vec<Entry>,
    /// Newest revision at that point.
    pub revision: u64,
    /// Time of that point in milliseconds since 1970; 0 if unknown. For a revision without a known
    /// version it is the time of the last known write before.
    pub time: u64,
}

impl Store {
    /// Returns the start of the known past.
    pub async fn since(&self) -> Result<Since, PastError> {
        self.read_past(|history| Ok(history.since()?)).await
    }

    /// Lists the objects under a prefix, or the one with a key, at a point of the past: in the
    /// order of their keys, with the revision that was the newest. An Event keeps its newest
    /// version alone, so it is listed from its last change on. Labels and fields for selectors are
    /// filled in if `indexed` is set.
    pub async fn list_at(
        &self,
        prefix: &Prefix,
        only: Option<&Key>,
        at: At,
        indexed: bool,
    ) -> Result<PastList, PastError> {
        if self.shared.class_of(prefix) == (Class::HeadOnly { time_to_live: None }) {
            return Err(PastError::NotKept);
        }
        let newest = self.revision();
        let moment = match at {
            At::Revision(revision) if revision > newest => return Err(PastError::Future { revision, newest }),
            At::Revision(revision) => Moment {
                revision,
                time: u64::MAX,
            },
            At::Time(time) => self.read_past(move |history| Ok(history.moment(time)?)).await?,
        };
        let mut entries: BTreeMap<Key, Entry> = {
            let cache = self.shared.cache();
            let range = cache.range(prefix, None);
            range
                .filter(|entry| entry.revision <= moment.revision && only.is_none_or(|only| *only == entry.key))
                .map(|entry| (entry.key.clone(), entry.clone()))
                .collect()
        };
        let (prefix, only) = (prefix.clone(), only.cloned());
        let index = self.shared.options.index;
        let superseded = self.read_past(move |history| {
            let superseded = history.superseded(&prefix, only.as_ref(), moment)?;
            // Checked afterwards: versions compacted before are missing.
            let since = history.since()?;
            if !since.includes(moment) {
                return Err(PastError::Before { since });
            }
            let time = match at {
                At::Revision(revision) => {
                    let times = superseded.iter().map(|record| record.time);
                    times.fold(history.written(revision)?, u64::max)
                }
                At::Time(time) => time,
            };
            let entries = superseded.into_iter().map(|record| {
                let attributes = if indexed {
                    index(&record.key, &record.bytes)
                } else {
                    Attributes::default()
                };
                Entry::new(record.key, record.revision, record.bytes, attributes)
            });
            Ok((entries.collect::<Vec<Entry>>(), time))
        });
        let (superseded, time) = superseded.await?;
        entries.extend(superseded.into_iter().map(|entry| (entry.key.clone(), entry)));
        Ok(PastList {
            entries: entries.into_values().collect(),
            revision: moment.revision.min(newest),
            time,
        })
    }

    /// Returns an entry for a version of an object, with its attributes.
    pub fn entry_of(&self, key: &Key, revision: u64, bytes: Bytes) -> Entry {
        Entry::new(key.clone(), revision, bytes, Attributes::default())
    }

    /// Returns up to `limit` known versions of an object that were written before a revision,
    /// newest first.
    pub async fn versions(&self, key: &Key, before: u64, limit: usize) -> Result<Vec<Past>, PastError> {
        if (self.shared.options.class)(key.resource()) == (Class::HeadOnly { time_to_live: None }) {
            return Err(PastError::NotKept);
        }
        let key = key.clone();
        self.read_past(move |history| history.versions(&key, before, limit))
            .await
    }

    /// Newest known revision that deleted an object, after which another one may have its key; 0 if
    /// there is none.
    pub async fn deleted(&self, key: &Key) -> Result<u64, PastError> {
        let key = key.clone();
        self.read_past(move |history| Ok(history.deleted(&key)?)).await
    }

    /// False while superseded versions cannot be archived.
    pub fn archives(&self) -> bool {
        self.shared.history.archives()
    }

    /// Size of the database's file in bytes; `None` if there is no such file.
    pub fn size(&self) -> Option<u64> {
        self.shared.history.size()
    }

    /// Reads the ledger or the archive without blocking the asynchronous threads.
    async fn read_past<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn crate::History) -> Result<T, PastError> + Send + 'static,
    ) -> Result<T, PastError> {
        let history = Arc::clone(&self.shared.history);
        if !history.blocks() {
            return read(&*history);
        }
        let done = tokio::task::spawn_blocking(move || read(&*history)).await;
        done.unwrap_or_else(|join| Err(BackendError::Io(join.into()).into()))
    }
}
