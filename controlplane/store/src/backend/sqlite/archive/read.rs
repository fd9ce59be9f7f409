//! Reads of the archive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::super::{backend_error, meta, schema, signed, unsigned};
use super::State;
use super::delta::{Codec, nodes};
use super::table::{Superseded, resource_number};
use crate::backend::{BackendError, Moment, PastError, Since};
use crate::{Key, Prefix};

const COLUMNS: &str =
    "v.revision, v.began, v.until, v.ended, v.deleted, v.checksum, v.size, v.data, b.size, b.data, n.key
    FROM version v CROSS JOIN name n ON n.id = v.name LEFT JOIN base b ON b.id = v.base";

/// A separate connection to the archive, opened at the first read, and again when the archive is
/// replaced.
#[derive(Debug)]
pub(in super::super) struct ArchiveReader {
    path: PathBuf,
    state: Arc<State>,
    open: Option<(u64, Connection)>,
}

impl ArchiveReader {
    pub(in super::super) fn new(database: &Path, state: Arc<State>) -> Self {
        Self {
            path: super::path(database),
            state,
            open: None,
        }
    }

    /// State of the archive's thread.
    pub(in super::super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// Versions superseded up to this revision are archived.
    pub(in super::super) fn archived(&self) -> u64 {
        self.state.archived.load(Ordering::Acquire)
    }

    fn connection(&mut self) -> Result<&Connection, BackendError> {
        let generation = self.state.generation.load(Ordering::Relaxed);
        let open = match self.open.take() {
            Some((known, connection)) if known == generation => connection,
            Some(_) | None => schema::connect_reader(&self.path).map_err(backend_error)?,
        };
        Ok(&self.open.insert((generation, open)).1)
    }

    /// Start of the archive's past.
    pub(in super::super) fn since(&mut self) -> Result<Since, BackendError> {
        let connection = self.connection()?;
        let read = |name| meta(connection, name).map(unsigned).map_err(backend_error);
        Ok(Since {
            revision: read("since")?,
            time: read("since_time")?,
        })
    }

    /// The first revision that superseded a version after a time, and the previous one that
    /// superseded a version.
    pub(in super::super) fn first_after(&mut self, time: u64) -> Result<(Option<u64>, u64), BackendError> {
        let connection = self.connection()?;
        let bounds = connection
            .query_row(
                "SELECT coalesce(min(until), 0), coalesce(max(until), -1) FROM version",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(backend_error)?;
        let found = first_after(
            connection,
            "SELECT until, ended FROM version WHERE until >= ? ORDER BY until LIMIT 1",
            bounds,
            time,
        )
        .map_err(backend_error)?;
        let before: i64 = connection
            .prepare_cached("SELECT coalesce(max(until), 0) FROM version WHERE until < ?")
            .and_then(|mut read| read.query_row([found.map_or(i64::MAX, signed)], |row| row.get(0)))
            .map_err(backend_error)?;
        Ok((found, unsigned(before)))
    }

    /// Versions under a prefix, or of one key, that were the newest at a moment.
    pub(in super::super) fn alive(
        &mut self,
        prefix: &Prefix,
        only: Option<&Key>,
        at: Moment,
        mut found: impl FnMut(Superseded) -> Result<(), PastError>,
    ) -> Result<(), PastError> {
        let archived = self.archived();
        let connection = self.connection()?;
        let mut codec = codec()?;
        let mut take = |version: Superseded| {
            let (was, asked) = (version.began <= at.time, only.is_none_or(|only| *only == version.key));
            if !was || !asked || !prefix.contains(&version.key) {
                return Ok(());
            }
            found(version)
        };
        let revision = signed(at.revision);
        if let Some(only) = only {
            // Versions of one object do not overlap.
            let sql = format!(
                "SELECT {COLUMNS} WHERE v.until > ? AND v.until = (
                    SELECT until FROM version WHERE name = (SELECT id FROM name WHERE key = ?) AND revision <= ?
                    ORDER BY revision DESC LIMIT 1)"
            );
            return each(
                connection,
                &mut codec,
                &sql,
                params![revision, only.as_str(), revision],
                &mut take,
            );
        }
        let resource = resource_number(prefix.resource_name());
        let end = format!("{}0", prefix.as_str().trim_end_matches('/'));
        let bounds = "AND n.key >= ? AND n.key < ?";
        let left = format!("SELECT {COLUMNS} WHERE v.resource = ? AND v.node = ? AND v.until > ? {bounds}");
        let right = format!("SELECT {COLUMNS} WHERE v.resource = ? AND v.node = ? AND v.revision <= ? {bounds}");
        for node in nodes(at.revision, archived) {
            let sql = if node <= at.revision { &left } else { &right };
            let values = params![resource, signed(node), revision, prefix.as_str(), end];
            each(connection, &mut codec, sql, values, &mut take)?;
        }
        Ok(())
    }

    /// Time of the newest archived write up to a revision; 0 if there is none.
    pub(in super::super) fn written(&mut self, revision: u64) -> Result<u64, BackendError> {
        let ended = self
            .connection()?
            .prepare_cached("SELECT ended FROM version WHERE until <= ? ORDER BY until DESC LIMIT 1")
            .and_then(|mut read| read.query_row([signed(revision)], |row| row.get(0)).optional())
            .map_err(backend_error)?;
        Ok(ended.map_or(0, unsigned))
    }

    /// Newest archived revision that deleted an object; 0 if there is none.
    pub(in super::super) fn deleted(&mut self, key: &Key) -> Result<u64, BackendError> {
        let found = self
            .connection()?
            .prepare_cached(
                "SELECT until FROM version WHERE name = (SELECT id FROM name WHERE key = ?) AND deleted
                 ORDER BY revision DESC LIMIT 1",
            )
            .and_then(|mut read| read.query_row([key.as_str()], |row| row.get(0)).optional())
            .map_err(backend_error)?;
        Ok(found.map_or(0, unsigned))
    }

    /// Up to `limit` versions of an object that were written before a revision, the newest first.
    pub(in super::super) fn versions(
        &mut self,
        key: &Key,
        before: u64,
        limit: usize,
        found: &mut dyn FnMut(Superseded) -> Result<(), PastError>,
    ) -> Result<(), PastError> {
        let sql = format!(
            "SELECT {COLUMNS} WHERE v.name = (SELECT id FROM name WHERE key = ?) AND v.revision < ? ORDER BY v.revision DESC LIMIT ?"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let values = params![key.as_str(), signed(before), limit];
        each(self.connection()?, &mut codec()?, &sql, values, found)
    }
}

fn codec() -> Result<Codec, BackendError> {
    Codec::new().map_err(|error| BackendError::Io(error.into()))
}

fn each(
    connection: &Connection,
    codec: &mut Codec,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
    take: &mut dyn FnMut(Superseded) -> Result<(), PastError>,
) -> Result<(), PastError> {
    let mut statement = connection.prepare_cached(sql).map_err(backend_error)?;
    let mut rows = statement.query(values).map_err(backend_error)?;
    while let Some(row) = rows.next().map_err(backend_error)? {
        take(version(codec, row)?)?;
    }
    Ok(())
}

/// Decodes a row and verifies its checksum.
fn version(codec: &mut Codec, row: &Row<'_>) -> Result<Superseded, BackendError> {
    let number = |at: usize| row.get(at).map(unsigned);
    let revision = number(0).map_err(backend_error)?;
    let mut read = || -> Result<(Superseded, u32), Error> {
        let size = |at| number(at).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let blob = |at| Ok::<_, Error>(row.get_ref(at)?.as_blob()?);
        let failed = |error: std::io::Error| Error::ToSqlConversionFailure(error.into());
        let base = codec.unpack(blob(9)?, size(8)?, &[]).map_err(failed)?;
        let bytes = codec.unpack(blob(7)?, size(6)?, &base).map_err(failed)?;
        let key =
            Key::parse(row.get_ref(10)?.as_str()?).map_err(|error| Error::ToSqlConversionFailure(error.into()))?;
        let version = Superseded {
            key,
            revision,
            began: number(1)?,
            until: number(2)?,
            ended: number(3)?,
            deleted: row.get(4)?,
            bytes: bytes.into(),
        };
        Ok((version, row.get(5)?))
    };
    match read() {
        Ok((version, sum)) if version.checksum() == sum => Ok(version),
        Ok(_) | Err(_) => Err(BackendError::Damaged { revision }),
    }
}

/// The first key in a range whose time is after a given one, by bisection: times do not go back, or
/// only a little. `sql` returns the first key at or above one, and its time.
pub(in super::super) fn first_after(
    connection: &Connection,
    sql: &str,
    (mut low, last): (i64, i64),
    time: u64,
) -> Result<Option<u64>, Error> {
    let mut read = connection.prepare_cached(sql)?;
    let (mut end, mut found) = (last.saturating_add(1), None);
    while low < end {
        let middle = low + (end - low) / 2;
        let mut rows = read.query([middle])?;
        let row = rows
            .next()?
            .map(|row| Ok::<(i64, i64), Error>((row.get(0)?, row.get(1)?)));
        match row.transpose()? {
            Some((key, at)) if key < end && unsigned(at) <= time => low = key + 1,
            Some((key, _)) if key < end => {
                found = Some(unsigned(key));
                end = middle;
            }
            Some(_) | None => end = middle,
        }
    }
    Ok(found)
}
