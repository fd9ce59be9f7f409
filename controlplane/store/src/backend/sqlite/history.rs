//! Reading the past beside the writer.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::{backend_error, record, schema, signed};
use crate::Prefix;
use crate::backend::{BackendError, Change, History};

/// A connection of its own, opened when the past is first asked for.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Unopened,
    Open(Connection),
    Closed,
}

impl Reader {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            state: Mutex::new(State::Unopened),
        }
    }

    pub(super) fn close(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Closed;
    }
}

impl History for Reader {
    fn changes(&self, prefix: &Prefix, after: u64, until: u64, limit: usize) -> Result<Vec<Change>, BackendError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Unopened = *state {
            *state = State::Open(schema::connect_reader(&self.path).map_err(backend_error)?);
        }
        let State::Open(connection) = &*state else {
            return Err(BackendError::Io("the database is closed".into()));
        };
        let mut statement = connection
            .prepare_cached(
                "SELECT l.revision, l.key, l.operation, l.previous, l.checksum, l.value, p.value
                 FROM ledger l LEFT JOIN ledger p ON p.revision = l.previous
                 WHERE l.revision > ? AND l.revision <= ? AND l.key >= ? AND l.key < ? ORDER BY l.revision LIMIT ?",
            )
            .map_err(backend_error)?;
        // Every prefix ends in a slash; the character after it bounds the range.
        let end = format!("{}0", prefix.as_str().trim_end_matches('/'));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = statement
            .query(params![signed(after), signed(until), prefix.as_str(), end, limit])
            .map_err(backend_error)?;
        let mut changes = Vec::new();
        while let Some(row) = rows.next().map_err(backend_error)? {
            let record = record(row)?;
            let previous: Option<Vec<u8>> = row.get(6).map_err(backend_error)?;
            changes.push(Change {
                record,
                previous: previous.map(Bytes::from),
            });
        }
        Ok(changes)
    }

    fn blocks(&self) -> bool {
        true
    }
}
