//! The ledger in SQLite: WAL, `synchronous=FULL`, one transaction per batch.
//!
//! ```text
//! ledger  revision ─► key, operation, previous revision, time, checksum, bytes      append-only; compaction removes old rows
//! head    key      ─► revision                                                the newest version; the bytes are in the ledger
//! meta    floor, swept, revision, archive                                     where compaction is; keeps the counter from going back
//! ```

mod archive;
mod checkpoint;
mod copy;
mod history;
mod lock;
mod mark;
mod measures;
mod reserve;
mod schema;
mod sql;
mod wal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, Error, ErrorCode, OptionalExtension, params};
use tracing::warn;

pub use self::copy::{CopyError, check_copy, copy, outdate};
pub use self::lock::Lock;
pub use self::measures::{Measure, Measures};
pub use self::sql::{Cell, Sql, SqlError};

use self::archive::Archiver;
use self::checkpoint::Checkpointer;
use self::history::Reader;
use self::mark::{Mark, Position};
use self::reserve::Reserve;
use super::{Backend, BackendError, History, Loaded, Operation, Record};
use crate::{Key, OpenError, Options};

/// Free pages that are kept in the file for later writes.
const FREE_PAGES: u64 = 2048;
/// Free pages that one step returns to the file system.
const VACUUM_PAGES: u64 = 512;

/// A database file, held exclusively.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    /// `None` after a failure that may have broken the connection; the next write opens a new one.
    connection: Option<Connection>,
    checkpointer: Checkpointer,
    reader: Arc<Reader>,
    archiver: Option<Archiver>,
    revision: u64,
    /// Versions superseded up to this revision are removed.
    swept: u64,
    mark: Mark,
    reserve: Reserve,
    _lock: Lock,
}

impl Sqlite {
    /// Opens the database, or creates a new one. Refuses one that another process has open, that is
    /// damaged, that has lost acknowledged writes, or that belongs to another program.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let lock = Lock::take(path)?;
        let known = Position::of(path).map_err(OpenError::Create)?;
        let lost = schema::prepare(path, &known, options)?;
        if let Some(finding) = lost {
            let path = path.to_owned();
            if !options.accept_loss {
                return Err(OpenError::Lost { path, finding });
            }
            warn!(database = %path.display(), finding, "acknowledged writes are lost; what is left is taken");
            copy::raise(&path, known.revision).map_err(OpenError::Load)?;
        }
        let checkpointer = Checkpointer::start(path).map_err(OpenError::Thread)?;
        let failed = |error| OpenError::Load(backend_error(error));
        let connection = checkpointer.connect(path).map_err(failed)?;
        let revision = schema::newest(&connection).map_err(failed)?;
        let swept = unsigned(meta(&connection, "swept").map_err(failed)?);
        let archiver = options
            .kept
            .map(|kept| Archiver::start(path, &connection, kept, options))
            .transpose()?;
        let archive = archiver.as_ref().map(|archiver| archiver.reader(path));
        Ok(Self {
            path: path.to_owned(),
            connection: Some(connection),
            checkpointer,
            reader: Arc::new(Reader::new(path, archive)),
            archiver,
            revision,
            swept,
            mark: Mark::open(path, revision).map_err(OpenError::Create)?,
            reserve: Reserve::of(path).map_err(OpenError::Create)?,
            _lock: lock,
        })
    }

    /// Stores a whole ledger at its own revisions in this empty database, in one transaction. Lists
    /// and watches from before are refused.
    pub fn fill(&mut self, loaded: &Loaded) -> Result<(), BackendError> {
        self.transaction(loaded.revision, |connection| {
            insert(connection, &loaded.heads)?;
            for mark in ["revision", "floor", "swept"] {
                set_meta(connection, mark, signed(loaded.revision))?;
            }
            Ok(())
        })?;
        self.swept = loaded.revision;
        Ok(())
    }

    /// Closes the database and renames its files, so that nobody opens a ledger that has moved. Those
    /// of an earlier move are kept. Returns the database's new path.
    pub fn set_aside(mut self) -> Result<PathBuf, BackendError> {
        self.close()?;
        let database = &self.path;
        // Without the first none of the others is used.
        let files = [database.clone(), mark::path(database), archive::path(database)];
        let mut ending = "moved".to_owned();
        let mut number = 1_u32;
        while files.iter().any(|file| file.with_added_extension(&ending).exists()) {
            number += 1;
            ending = format!("moved.{number}");
        }
        for file in files {
            match std::fs::rename(&file, file.with_added_extension(&ending)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(BackendError::Io(error.into()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        sync_directory(database).map_err(|error| BackendError::Io(error.into()))?;
        Ok(database.with_added_extension(&ending))
    }

    /// Runs `work` in one transaction, after which the ledger is at `revision`: afterwards all of
    /// it is on disk, or none of it.
    fn transaction<T>(
        &mut self,
        revision: u64,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, BackendError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.checkpointer.connect(&self.path).map_err(backend_error)?,
        };
        let outcome = connection
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut begin| begin.execute([]))
            .and_then(|_| work(&connection))
            .and_then(|done| connection.prepare_cached("COMMIT")?.execute([]).map(|_| done));
        let noted = if connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok() {
            self.connection = Some(connection);
            outcome.as_ref().map_or(Ok(()), |_| {
                self.revision = revision;
                self.mark.advance(revision, self.checkpointer.pages())
            })
        } else {
            warn!("the connection cannot roll back; the next write opens another");
            // The last connection removes the WAL when it closes.
            self.mark.settle(self.revision)
        };
        if let Err(error) = noted {
            warn!(%error, "how far the database has come cannot be noted");
        }
        outcome.map_err(backend_error)
    }
}

impl Backend for Sqlite {
    fn load(&mut self) -> Result<Loaded, BackendError> {
        let Some(connection) = self.connection.as_ref() else {
            return Err(BackendError::Io("the database is closed".into()));
        };
        schema::load(connection)
    }

    fn append(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let revision = records.last().map_or(self.revision, |last| last.revision);
        self.transaction(revision, |connection| insert(connection, records))?;
        self.checkpointer.catch_up(self.connection.as_ref());
        Ok(())
    }

    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError> {
        let (revision, short) = (self.revision, !self.reserve.kept);
        // Watches end at the floor; versions below it are removed once the archive has them.
        let archiver = self.archiver.as_ref();
        let reach = archiver.map_or(floor, |archiver| archiver.advance(floor, short));
        let (more, swept) = self.transaction(revision, |connection| {
            let swept = meta(connection, "swept")?;
            let mut visit = connection.prepare_cached(
                "SELECT revision, previous, operation FROM ledger WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?",
            )?;
            let rows = visit
                .query_map(params![swept, signed(reach), i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect::<Result<Vec<(i64, i64, u8)>, Error>>()?;
            let mut forget = connection.prepare_cached("DELETE FROM ledger WHERE revision = ?")?;
            for (revision, previous, operation) in &rows {
                forget.execute([previous])?;
                if *operation == code(Operation::Delete) {
                    forget.execute([revision])?;
                }
            }
            let more = rows.len() >= limit;
            let reached = rows.last().filter(|_| more).map_or(signed(reach), |(revision, _, _)| *revision);
            let swept = reached.max(swept);
            set_meta(connection, "swept", swept)?;
            set_meta(connection, "floor", signed(floor).max(meta(connection, "floor")?))?;
            set_meta(connection, "revision", signed(revision))?;
            Ok((more || give_back(connection, short)?, unsigned(swept)))
        })?;
        self.swept = swept;
        self.checkpointer.catch_up(self.connection.as_ref());
        Ok(more)
    }

    fn has_more(&self, floor: u64) -> bool {
        self.archiver.is_some() && self.swept < floor
    }

    fn history(&self) -> Result<Arc<dyn History>, BackendError> {
        Ok(Arc::clone(&self.reader) as Arc<dyn History>)
    }

    fn close(&mut self) -> Result<(), BackendError> {
        self.reader.close();
        if let Some(archiver) = &mut self.archiver {
            archiver.stop();
        }
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        let written_back = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        let settled = self.mark.settle(self.revision);
        let closed = connection.close().map_err(|(_, error)| error);
        self.checkpointer.stop();
        written_back.and(closed).map_err(backend_error)?;
        settled.map_err(|error| BackendError::Io(error.into()))
    }

    fn reserve(&mut self) -> bool {
        self.reserve.keep()
    }

    fn release(&mut self) -> bool {
        self.reserve.release()
    }
}

/// Inserts records into the ledger, and updates the heads.
fn insert(connection: &Connection, records: &[Record]) -> Result<(), Error> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO ledger (revision, key, operation, previous, time, checksum, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    let mut head = connection.prepare_cached("INSERT OR REPLACE INTO head (key, revision) VALUES (?, ?)")?;
    let mut unhead = connection.prepare_cached("DELETE FROM head WHERE key = ?")?;
    let mut forget = connection.prepare_cached("DELETE FROM ledger WHERE revision = ?")?;
    for record in records {
        if record.drop_previous {
            forget.execute([signed(record.previous)])?;
        }
        let operation = code(record.operation);
        let (revision, previous) = (signed(record.revision), signed(record.previous));
        let key = record.key.as_str();
        insert.execute(params![
            revision,
            key,
            operation,
            previous,
            signed(record.time),
            checksum(record),
            &*record.bytes
        ])?;
        match record.operation {
            Operation::Delete => unhead.execute([key])?,
            Operation::Create | Operation::Update => head.execute(params![key, revision])?,
        };
    }
    Ok(())
}

/// Returns a few free pages to the file system if there are many, or any at all if it is `short` of
/// space. `true` if more are left.
fn give_back(connection: &Connection, short: bool) -> Result<bool, Error> {
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    let free = u64::try_from(pragma("freelist_count")?).unwrap_or(0);
    let pages = u64::try_from(pragma("page_count")?).unwrap_or(0);
    if free == 0 || !short && (free < FREE_PAGES || free < pages / 4) {
        return Ok(false);
    }
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    Ok(true)
}

fn meta(connection: &Connection, name: &str) -> Result<i64, Error> {
    let value = connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(value.unwrap_or(0))
}

fn set_meta(connection: &Connection, name: &str, value: i64) -> Result<(), Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)")?
        .execute(params![name, value])
        .map(drop)
}

fn code(operation: Operation) -> u8 {
    match operation {
        Operation::Create => 0,
        Operation::Update => 1,
        Operation::Delete => 2,
    }
}

fn operation(code: u8) -> Option<Operation> {
    match code {
        0 => Some(Operation::Create),
        1 => Some(Operation::Update),
        2 => Some(Operation::Delete),
        _ => None,
    }
}

/// SQLite's integers are signed; no ledger reaches 2⁶³ revisions.
fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Inverse of [`signed`]; 0 for a negative number, which only damage causes.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// SQLite does not notice a flipped bit inside a value, so every row has a checksum over all its
/// columns.
fn checksum(record: &Record) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record.revision.to_le_bytes());
    hasher.update(&record.previous.to_le_bytes());
    hasher.update(&[code(record.operation)]);
    hasher.update(record.key.as_str().as_bytes());
    hasher.update(&record.bytes);
    hasher.finalize()
}

/// Decodes the columns `revision, key, operation, previous, checksum, value` and verifies the
/// checksum; the time is not included.
fn record(row: &rusqlite::Row<'_>) -> Result<Record, BackendError> {
    let revision: i64 = row.get(0).map_err(backend_error)?;
    let revision = u64::try_from(revision).unwrap_or(0);
    let damaged = || BackendError::Damaged { revision };
    let text = row
        .get_ref(1)
        .ok()
        .and_then(|key| key.as_str().ok())
        .ok_or_else(damaged)?;
    let key = Key::parse(text).ok().ok_or_else(damaged)?;
    let operation = row.get(2).ok().and_then(operation).ok_or_else(damaged)?;
    let previous = row
        .get(3)
        .ok()
        .and_then(|previous: i64| u64::try_from(previous).ok())
        .ok_or_else(damaged)?;
    let sum: u32 = row.get(4).ok().ok_or_else(damaged)?;
    let bytes = row
        .get_ref(5)
        .ok()
        .and_then(|value| value.as_blob().ok())
        .ok_or_else(damaged)?;
    let bytes = Bytes::copy_from_slice(bytes);
    let record = Record {
        revision,
        key,
        operation,
        previous,
        drop_previous: false,
        time: 0,
        bytes,
    };
    if checksum(&record) == sum {
        Ok(record)
    } else {
        Err(damaged())
    }
}

/// Maps an SQLite error to its meaning for the caller.
fn backend_error(error: Error) -> BackendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => BackendError::Full(error.into()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => BackendError::Corrupt(error.into()),
        _ => BackendError::Io(error.into()),
    }
}

/// Syncs the directory of a file.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
