//! Reads of the past beside the writer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::archive::{self, ArchiveReader, first_after};
use super::{backend_error, code, meta, record, schema, signed, unsigned};
use crate::backend::{BackendError, Change, History, MOST_BYTES, Moment, Operation, Past, PastError, Record, Since};
use crate::{Key, Prefix};

/// Separate connections, opened at the first read of the past: one to the ledger, and one to the
/// archive.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    state: Mutex<State>,
    /// Separate from the ledger's: watchers do not wait for reads of the archive.
    archive: Mutex<Option<ArchiveReader>>,
    archiving: Option<Arc<archive::State>>,
}

#[derive(Debug)]
enum State {
    Unopened,
    Open(Connection),
    Closed,
}

impl Reader {
    pub(super) fn new(path: &Path, archive: Option<ArchiveReader>) -> Self {
        Self {
            path: path.to_owned(),
            state: Mutex::new(State::Unopened),
            archiving: archive.as_ref().map(ArchiveReader::state),
            archive: Mutex::new(archive),
        }
    }

    pub(super) fn close(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        *self.archive.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn ledger<T, E: From<BackendError>>(&self, read: impl FnOnce(&Connection) -> Result<T, E>) -> Result<T, E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Unopened = *state {
            *state = State::Open(schema::connect_reader(&self.path).map_err(backend_error)?);
        }
        let State::Open(connection) = &*state else {
            return Err(BackendError::Io("the database is closed".into()).into());
        };
        read(connection)
    }

    /// Reads the archive, if there is one without a gap.
    fn archive<T, E>(&self, read: impl FnOnce(&mut ArchiveReader) -> Result<T, E>) -> Result<Option<T>, E> {
        if self.archiving.as_ref().is_none_or(|archiving| archiving.is_lost()) {
            return Ok(None);
        }
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        archive.as_mut().map(read).transpose()
    }

    /// Revision up to which the archive has all versions, so that the ledger need not be read.
    fn archived(&self) -> Result<u64, BackendError> {
        let archived = self.archive(|archive| Ok::<_, BackendError>(archive.archived()))?;
        match archived {
            Some(archived) => Ok(archived),
            None => self.swept(),
        }
    }

    fn swept(&self) -> Result<u64, BackendError> {
        self.ledger(|ledger| meta(ledger, "swept").map(unsigned).map_err(backend_error))
    }
}

/// Key range of a prefix, which ends in a slash, or of one key.
fn bounds(prefix: &Prefix, only: Option<&Key>) -> (String, String) {
    match only {
        Some(key) => (key.to_string(), format!("{key}\0")),
        None => (
            prefix.as_str().to_owned(),
            format!("{}0", prefix.as_str().trim_end_matches('/')),
        ),
    }
}

impl History for Reader {
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError> {
        let (begin, end) = bounds(prefix, None);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.ledger(|connection| {
            let mut statement = connection
                .prepare_cached(
                    "SELECT l.revision, l.key, l.operation, l.previous, l.checksum, l.value, p.value, l.time
                     FROM ledger l LEFT JOIN ledger p ON p.revision = l.previous
                     WHERE l.revision > ? AND l.revision <= ? AND l.key >= ? AND l.key < ? ORDER BY l.revision LIMIT ?",
                )
                .map_err(backend_error)?;
            let mut rows = statement
                .query(params![signed(after), signed(until), begin, end, limit])
                .map_err(backend_error)?;
            let mut changes = Vec::new();
            while let Some(row) = rows.next().map_err(backend_error)? {
                let mut record = record(row)?;
                record.time = unsigned(row.get(7).map_err(backend_error)?);
                let previous: Option<Vec<u8>> = row.get(6).map_err(backend_error)?;
                changes.push(Change {
                    record,
                    previous: previous.map(Bytes::from),
                });
            }
            Ok(changes)
        })
    }

    fn since(&self) -> Result<Since, BackendError> {
        if let Some(since) = self.archive(ArchiveReader::since)? {
            return Ok(since);
        }
        let swept = self.swept()?;
        let sql = "SELECT coalesce((SELECT time FROM ledger WHERE revision > ? ORDER BY revision LIMIT 1), ?)";
        let first = self.ledger(|ledger| {
            let mut read = ledger.prepare_cached(sql).map_err(backend_error)?;
            read.query_row([signed(swept), i64::MAX], |row| row.get(0))
                .map_err(backend_error)
        })?;
        Ok(Since {
            revision: swept,
            time: if swept == 0 { 0 } else { unsigned(first) },
        })
    }

    fn moment(&self, time: u64) -> Result<Moment, BackendError> {
        let (later, before) = self.archive(|archive| archive.first_after(time))?.unwrap_or((None, 0));
        // Objects may have been created between two revisions that superseded others.
        let sql = "SELECT revision, time FROM ledger WHERE revision >= ? ORDER BY revision LIMIT 1";
        let revision = self.ledger(|ledger| {
            let newest = schema::newest(ledger).map(signed).map_err(backend_error)?;
            let end = later.map_or(newest, |later| signed(later) - 1);
            let first = first_after(ledger, sql, (signed(before) + 1, end), time).map_err(backend_error)?;
            Ok::<_, BackendError>(first.map_or(unsigned(end), |first| first.saturating_sub(1)))
        })?;
        Ok(Moment { revision, time })
    }

    fn written(&self, revision: u64) -> Result<u64, BackendError> {
        let sql = "SELECT time FROM ledger WHERE revision <= ? ORDER BY revision DESC LIMIT 1";
        let own = self.ledger(|ledger| {
            let mut read = ledger.prepare_cached(sql).map_err(backend_error)?;
            let time = read.query_row([signed(revision)], |row| row.get(0)).optional();
            time.map_err(backend_error)
        })?;
        let archived = self.archive(|archive| archive.written(revision))?;
        Ok(own.map_or(0, unsigned).max(archived.unwrap_or(0)))
    }

    fn superseded(&self, prefix: &Prefix, only: Option<&Key>, at: Moment) -> Result<Vec<Record>, PastError> {
        let mut found = BTreeMap::new();
        let mut size = 0_usize;
        let after = self.archived()?.max(at.revision);
        let (begin, end) = bounds(prefix, only);
        self.ledger(|ledger| {
            let mut statement = ledger
                .prepare_cached(
                    // Without history, the row of a deletion holds the last version.
                    "SELECT p.revision, p.key, p.operation, p.previous, p.checksum, p.value, l.previous,
                            iif(p.revision = l.revision, 0, p.time)
                     FROM ledger l JOIN ledger p ON p.revision = coalesce(
                        (SELECT revision FROM ledger WHERE revision = l.previous), iif(l.operation = 2, l.revision, NULL))
                     WHERE l.revision > ? AND l.previous BETWEEN 1 AND ? AND l.key >= ? AND l.key < ?",
                )
                .map_err(backend_error)?;
            let mut rows = statement
                .query(params![signed(after), signed(at.revision), begin, end])
                .map_err(backend_error)?;
            while let Some(row) = rows.next().map_err(backend_error)? {
                let mut record = record(row)?;
                record.revision = unsigned(row.get(6).map_err(backend_error)?);
                record.time = unsigned(row.get(7).map_err(backend_error)?);
                size = size.saturating_add(record.bytes.len());
                if size > MOST_BYTES {
                    return Err(PastError::TooLarge);
                }
                found.insert(record.key.clone(), record);
            }
            Ok(())
        })?;
        self.archive(|archive| {
            archive.alive(prefix, only, at, |version| {
                size = size.saturating_add(version.bytes.len());
                if size > MOST_BYTES {
                    return Err(PastError::TooLarge);
                }
                let record = Record {
                    revision: version.revision,
                    key: version.key.clone(),
                    operation: Operation::Update,
                    previous: 0,
                    drop_previous: false,
                    time: version.began,
                    bytes: version.bytes,
                };
                found.insert(version.key, record);
                Ok(())
            })
        })?;
        Ok(found.into_values().collect())
    }

    fn versions(&self, key: &Key, before: u64, limit: usize) -> Result<Vec<Past>, PastError> {
        let after = self.archived()?;
        let mut found = self.ledger(|ledger| ledger_versions(ledger, key, after, (before, limit)))?;
        // Versions may have moved to the archive meanwhile.
        let before = found.last().map_or(before, |oldest| oldest.revision);
        let mut size: usize = found.iter().map(|version| version.bytes.len()).sum();
        let left = limit.saturating_sub(found.len());
        self.archive(|archive| {
            archive.versions(key, before, left, &mut |version| {
                size = size.saturating_add(version.bytes.len());
                if size > MOST_BYTES {
                    return Err(PastError::TooLarge);
                }
                found.push(Past {
                    revision: version.revision,
                    began: version.began,
                    until: Some(version.until),
                    ended: version.ended,
                    deleted: version.deleted,
                    bytes: version.bytes,
                });
                Ok(())
            })
        })?;
        Ok(found)
    }

    fn archives(&self) -> bool {
        self.archiving.as_ref().is_none_or(|archiving| archiving.works())
    }

    fn size(&self) -> Option<u64> {
        std::fs::metadata(&self.path).ok().map(|file| file.len())
    }

    fn deleted(&self, key: &Key) -> Result<u64, BackendError> {
        let after = self.archived()?;
        let sql = "SELECT coalesce(max(revision), 0) FROM ledger WHERE revision > ? AND key = ? AND operation = ?";
        let values = params![signed(after), key.as_str(), code(Operation::Delete)];
        let found = self.ledger(|ledger| {
            let mut read = ledger.prepare_cached(sql).map_err(backend_error)?;
            read.query_row(values, |row| row.get(0)).map_err(backend_error)
        })?;
        match unsigned(found) {
            0 => Ok(self.archive(|archive| archive.deleted(key))?.unwrap_or(0)),
            found => Ok(found),
        }
    }

    fn blocks(&self) -> bool {
        true
    }
}

/// Up to `limit` versions of an object in the ledger that were written before a revision, newest
/// first: of those written or superseded after `after`, and of the current one.
fn ledger_versions(
    ledger: &Connection,
    key: &Key,
    after: u64,
    (before, limit): (u64, usize),
) -> Result<Vec<Past>, PastError> {
    let mut statement = ledger
        .prepare_cached(
            "SELECT l.revision, l.key, l.operation, l.previous, l.checksum, iif(l.previous < ?4, l.value, NULL), l.time,
                    EXISTS (SELECT 1 FROM ledger WHERE revision = l.previous)
             FROM ledger l WHERE l.revision IN (
                SELECT revision FROM ledger WHERE revision > ?1 AND key >= ?2 AND key < ?3
                UNION SELECT previous FROM ledger WHERE revision > ?1 AND key >= ?2 AND key < ?3
                UNION SELECT revision FROM head WHERE key = ?2)
             ORDER BY l.revision DESC",
        )
        .map_err(backend_error)?;
    let (begin, end) = bounds(&Prefix::resource("", ""), Some(key));
    let mut rows = statement
        .query(params![signed(after), begin, end, signed(before)])
        .map_err(backend_error)?;
    let (mut found, mut size, mut later) = (Vec::new(), 0_usize, None);
    while found.len() < limit
        && let Some(row) = rows.next().map_err(backend_error)?
    {
        let number = |column: usize| row.get(column).map(unsigned).map_err(backend_error);
        let (revision, previous, time) = (number(0)?, number(3)?, number(6)?);
        let is_deletion = number(2)? == u64::from(code(Operation::Delete));
        // Without history, the row of a deletion holds the last version.
        let is_last = is_deletion && number(7)? == 0;
        let next = later.replace((previous, revision, time, is_deletion));
        let mut version = Past {
            revision,
            began: time,
            until: None,
            ended: 0,
            deleted: false,
            bytes: Bytes::new(),
        };
        if is_last {
            (version.revision, version.began) = (previous, 0);
            (version.until, version.ended, version.deleted) = (Some(revision), time, true);
        } else if let Some((_, until, ended, deleted)) = next.filter(|(previous, ..)| *previous == revision) {
            (version.until, version.ended, version.deleted) = (Some(until), ended, deleted);
        }
        if version.revision >= before || is_deletion && !is_last {
            continue;
        }
        version.bytes = record(row)?.bytes;
        size = size.saturating_add(version.bytes.len());
        if size > MOST_BYTES {
            return Err(PastError::TooLarge);
        }
        found.push(version);
    }
    Ok(found)
}
