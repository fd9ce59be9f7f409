//! The archive's file: creation, appending, and pruning by age and size.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::super::{backend_error, give_back, meta, schema, set_meta, signed, unsigned};
use super::delta::{Codec, fork};
use crate::Key;
use crate::backend::{BackendError, Since};
use crate::options::Kept;

/// "SKIP": identifies the file as Skiff's.
const APPLICATION_ID: i32 = 0x534b_4950;
/// Version of the tables. An archive of another version is replaced.
const USER_VERSION: i32 = 1;
/// Versions that one transaction prunes.
const PRUNE: usize = 256;
/// A version whose difference is larger than 1/`GROUP` of its base begins a new group. The first
/// version of an object joins a group of another object of its resource if the difference is at
/// most 1/`OTHERS`: pods of one template are alike, and so are Events.
const GROUP: usize = 3;
const OTHERS: usize = 2;
/// Number of resources whose newest group is remembered.
const RESOURCES: usize = 512;

const TABLES: &str = "
    CREATE TABLE name (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE base (id INTEGER PRIMARY KEY, last INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
    CREATE INDEX base_last ON base (last);
    CREATE TABLE version (
        until INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL,
        name INTEGER NOT NULL,
        resource INTEGER NOT NULL,
        node INTEGER NOT NULL,
        began INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        base INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        size INTEGER NOT NULL,
        data BLOB NOT NULL
    ) STRICT;
    CREATE INDEX version_of ON version (name, revision);
    CREATE INDEX version_from ON version (resource, node, revision);
    CREATE INDEX version_to ON version (resource, node);
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// A version that was superseded by another one or by a deletion.
#[derive(Debug)]
pub(in super::super) struct Superseded {
    pub(in super::super) key: Key,
    pub(in super::super) revision: u64,
    pub(in super::super) began: u64,
    pub(in super::super) until: u64,
    pub(in super::super) ended: u64,
    pub(in super::super) deleted: bool,
    pub(in super::super) bytes: Bytes,
}

impl Superseded {
    /// Checksum over all stored fields.
    pub(super) fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for number in [self.revision, self.began, self.until, self.ended, self.deleted.into()] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(self.key.as_str().as_bytes());
        hasher.update(&self.bytes);
        hasher.finalize()
    }
}

/// Hash of a resource's name; resources may collide.
pub(super) fn resource_number(name: &str) -> u32 {
    crc32fast::hash(name.as_bytes())
}

pub(super) struct Table {
    connection: Connection,
    /// Identity of the database that it belongs to.
    pub(super) identity: i64,
    /// Versions superseded up to this revision are archived.
    pub(super) archived: u64,
    /// Newest base of each resource, by the resource's number.
    newest: HashMap<u32, i64>,
}

impl Table {
    /// Opens the archive. Creates a new one with this identity, whose past begins at `begin`, if
    /// there is none or `continues` is false.
    pub(super) fn open(path: &Path, continues: bool, begin: Since, identity: i64) -> Result<Self, Error> {
        if !continues {
            for ending in ["", "-wal", "-shm"] {
                let mut file = path.as_os_str().to_owned();
                file.push(ending);
                // If this fails, the file is found again below.
                drop(std::fs::remove_file(file));
            }
        }
        schema::create_private(path)?;
        let connection = schema::connection(path)?;
        let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
        if pragma("page_count")? == 0 {
            create(&connection, begin, identity)?;
        } else if (pragma("application_id")?, pragma("user_version")?) != (APPLICATION_ID, USER_VERSION) {
            drop(connection);
            return if continues {
                Self::open(path, false, begin, identity)
            } else {
                Err(Error::InvalidQuery)
            };
        }
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 8388608;
             PRAGMA cache_size = -512; PRAGMA cell_size_check = ON;",
        )?;
        connection.set_prepared_statement_cache_capacity(24);
        let archived = unsigned(meta(&connection, "archived")?);
        let identity = meta(&connection, "identity")?;
        Ok(Self {
            connection,
            identity,
            archived,
            newest: HashMap::new(),
        })
    }

    /// Appends versions, records how far they are complete, and prunes a few old ones. `true` if
    /// more are left to prune. Afterwards all of it is on disk, or none.
    pub(super) fn append(
        &mut self,
        superseded: &[Superseded],
        reached: u64,
        kept: Kept,
        now: u64,
    ) -> Result<bool, BackendError> {
        let (connection, newest) = (&self.connection, &mut self.newest);
        let mut work = || {
            connection.execute_batch("BEGIN IMMEDIATE").map_err(backend_error)?;
            if !superseded.is_empty() {
                let mut codec = Codec::new().map_err(|error| BackendError::Io(error.into()))?;
                for version in superseded {
                    insert(connection, newest, &mut codec, version)?;
                }
            }
            let pruned = set_meta(connection, "archived", signed(reached))
                .and_then(|()| prune(connection, kept, now))
                .and_then(|pruned| connection.execute_batch("COMMIT").map(|()| pruned))
                .map_err(backend_error)?;
            Ok(pruned)
        };
        let outcome = work();
        if !connection.is_autocommit()
            && let Err(error) = connection.execute_batch("ROLLBACK")
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "roll the archive back");
        }
        match outcome {
            Ok(_) => self.archived = reached,
            // They may include bases that were rolled back.
            Err(_) => self.newest.clear(),
        }
        outcome
    }
}

fn create(connection: &Connection, begin: Since, identity: i64) -> Result<(), Error> {
    connection.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {USER_VERSION};"
    ))?;
    set_meta(connection, "identity", identity)?;
    set_meta(connection, "archived", signed(begin.revision))?;
    set_meta(connection, "since", signed(begin.revision))?;
    set_meta(connection, "since_time", signed(begin.time))?;
    connection.execute_batch("COMMIT")
}

fn insert(
    connection: &Connection,
    newest: &mut HashMap<u32, i64>,
    codec: &mut Codec,
    version: &Superseded,
) -> Result<(), BackendError> {
    let io = |error: io::Error| BackendError::Io(error.into());
    let name = name(connection, version.key.as_str()).map_err(backend_error)?;
    let until = signed(version.until);
    let resource = resource_number(version.key.resource());
    let mut group = None;
    if let Some(Base { id, size, data, part }) =
        nearest(connection, name, newest.get(&resource).copied()).map_err(backend_error)?
    {
        // A base that is no longer readable is not reused.
        if let Ok(base) = codec.unpack(&data, size, &[]) {
            let packed = codec.pack(&version.bytes, &base).map_err(io)?;
            group = (packed.len().saturating_mul(part) <= data.len()).then_some((id, packed));
        }
    }
    let mut store = || {
        let (base, packed) = if let Some((id, packed)) = group.take() {
            connection
                .prepare_cached("UPDATE base SET last = ? WHERE id = ?")?
                .execute([until, id])?;
            (id, packed)
        } else {
            let failed = |error: io::Error| Error::ToSqlConversionFailure(error.into());
            let whole = codec.pack(&version.bytes, &[]).map_err(failed)?;
            connection
                .prepare_cached("INSERT OR REPLACE INTO base (id, last, size, data) VALUES (?, ?, ?, ?)")?
                .execute(params![until, until, length(&version.bytes), whole])?;
            if newest.len() >= RESOURCES {
                newest.clear();
            }
            newest.insert(resource, until);
            (until, codec.pack(&version.bytes, &version.bytes).map_err(failed)?)
        };
        let node = fork(version.revision, version.until.saturating_sub(1));
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO version
                 (until, revision, name, resource, node, began, ended, deleted, base, checksum, size, data)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                until,
                signed(version.revision),
                name,
                resource,
                signed(node),
                signed(version.began),
                signed(version.ended),
                version.deleted,
                base,
                version.checksum(),
                length(&version.bytes),
                packed
            ])
    };
    store().map(drop).map_err(backend_error)
}

fn name(connection: &Connection, key: &str) -> Result<i64, Error> {
    let known = connection
        .prepare_cached("SELECT id FROM name WHERE key = ?")?
        .query_row([key], |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(id);
    }
    connection
        .prepare_cached("INSERT INTO name (key) VALUES (?)")?
        .execute([key])?;
    Ok(connection.last_insert_rowid())
}

/// A version that others are stored as differences to.
struct Base {
    id: i64,
    size: usize,
    data: Vec<u8>,
    part: usize,
}

/// Base of an object's newest version; for its first version, that of another object.
fn nearest(connection: &Connection, name: i64, other: Option<i64>) -> Result<Option<Base>, Error> {
    let own: Option<i64> = connection
        .prepare_cached("SELECT base FROM version WHERE name = ? ORDER BY revision DESC LIMIT 1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    let (Some(id), part) = (own.or(other), own.map_or(OTHERS, |_| GROUP)) else {
        return Ok(None);
    };
    connection
        .prepare_cached("SELECT size, data FROM base WHERE id = ?")?
        .query_row([id], |row| {
            let size: i64 = row.get(0)?;
            Ok(Base {
                id,
                size: usize::try_from(size).unwrap_or(0),
                data: row.get(1)?,
                part,
            })
        })
        .optional()
}

fn length(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// Prunes the oldest versions if they are too old or take too much space. `true` if more are left.
fn prune(connection: &Connection, kept: Kept, now: u64) -> Result<bool, Error> {
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    let used = (pragma("page_count")? - pragma("freelist_count")?).saturating_mul(pragma("page_size")?);
    let large = unsigned(used) > kept.bytes;
    let oldest_kept = now.saturating_sub(u64::try_from(kept.age.as_millis()).unwrap_or(u64::MAX));
    let oldest = connection
        .prepare_cached("SELECT until, ended, name FROM version ORDER BY until LIMIT ?")?
        .query_map([i64::try_from(PRUNE).unwrap_or(i64::MAX)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .take_while(|row| matches!(row, Ok((_, ended, _)) if large || unsigned(*ended) < oldest_kept) || row.is_err())
        .collect::<Result<Vec<(i64, i64, i64)>, Error>>()?;
    let Some((until, ended, _)) = oldest.last().copied() else {
        return Ok(false);
    };
    connection
        .prepare_cached("DELETE FROM version WHERE until <= ?")?
        .execute([until])?;
    connection
        .prepare_cached("DELETE FROM base WHERE last <= ?")?
        .execute([until])?;
    let mut forget = connection.prepare_cached(
        "DELETE FROM name WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM version WHERE version.name = ?1)",
    )?;
    for (_, _, name) in &oldest {
        forget.execute([name])?;
    }
    let since = meta(connection, "since_time")?;
    set_meta(connection, "since", until)?;
    set_meta(connection, "since_time", ended.max(since))?;
    let given = give_back(connection, false)?;
    Ok(oldest.len() >= PRUNE || given)
}
