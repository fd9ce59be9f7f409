//! Creating, checking and loading the database.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, Error, OpenFlags};

use super::mark::Position;
use super::wal::{self, Log};
use super::{backend_error, meta, record, sync_directory};
use crate::backend::{BackendError, Loaded};
use crate::{OpenError, Options, Record};

/// "SKIF": identifies the file as Skiff's.
const APPLICATION_ID: i32 = 0x534b_4946;
/// Version of the tables.
const USER_VERSION: i32 = 1;

const TABLES: &str = "
    CREATE TABLE ledger (
        revision INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        operation INTEGER NOT NULL,
        previous INTEGER NOT NULL,
        time INTEGER NOT NULL DEFAULT 0,
        checksum INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    CREATE TABLE head (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// Creates the database if there is none, and refuses one that is damaged or belongs to another
/// program. Returns a description of lost acknowledged writes, if any.
pub(super) fn prepare(path: &Path, known: &Position, options: &Options) -> Result<Option<String>, OpenError> {
    let empty = std::fs::metadata(path).map_or(true, |file| file.len() == 0);
    if empty && (options.existed || known.revision > 0) {
        let finding = "it is missing or empty, but there was a cluster".to_owned();
        if options.accept_loss {
            make(path)?;
        }
        return Ok(Some(finding));
    }
    let log = wal::check(path, known.frames, known.salts).map_err(OpenError::Create)?;
    if let Log::Damaged(finding) = &log
        && !options.accept_loss
    {
        // Opening it would replay the damaged WAL into the database.
        return Ok(Some(finding.clone()));
    }
    make(path)?;
    let judge = || {
        let connection = connection(path)?;
        let revision = newest(&connection)?;
        let reached = known.revision;
        Ok(match log {
            Log::Damaged(finding) => Some(finding),
            Log::Missing | Log::Whole if revision < reached => {
                Some(format!("its newest revision is {revision}, but {reached} was reached"))
            }
            Log::Missing if known.frames > 0 && !is_consistent(&connection)? => {
                Some("its write-ahead log is missing".to_owned())
            }
            Log::Missing | Log::Whole => None,
        })
    };
    judge().map_err(|error| refusal(path, error))
}

fn make(path: &Path) -> Result<(), OpenError> {
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(OpenError::Create(error)),
    }
    let connection = connection(path).map_err(|error| refusal(path, error))?;
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let found = pragma("application_id").and_then(|id| Ok((id, pragma("user_version")?, pragma("page_count")?)));
    match found.map_err(|error| refusal(path, error))? {
        (0, 0, 0) => create(&connection, path),
        (APPLICATION_ID, USER_VERSION, _) => check(&connection, path).and_then(|()| add_times(&connection)),
        (APPLICATION_ID, version, _) => Err(OpenError::Version {
            found: version,
            supported: USER_VERSION,
        }),
        _ => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

fn create(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let tables = format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {USER_VERSION}; COMMIT;
         PRAGMA wal_checkpoint(TRUNCATE);"
    );
    connection
        .execute_batch(&tables)
        .map_err(|error| OpenError::Load(backend_error(error)))?;
    // The directory entry must be as durable as the first write.
    sync_directory(path).map_err(OpenError::Create)
}

/// Adds the time columns to a ledger of an older version, which can still use the file afterwards.
fn add_times(connection: &Connection) -> Result<(), OpenError> {
    let sql = "SELECT count(*) FROM pragma_table_info('ledger') WHERE name = 'time'";
    let known = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    known
        .and_then(|known| match known {
            0 => connection.execute_batch("ALTER TABLE ledger ADD COLUMN time INTEGER NOT NULL DEFAULT 0"),
            _ => Ok(()),
        })
        .map_err(|error| OpenError::Load(backend_error(error)))
}

fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| refusal(path, error))?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(OpenError::Damaged {
            path: path.to_owned(),
            finding: verdict,
        })
    }
}

fn refusal(path: &Path, error: Error) -> OpenError {
    match backend_error(error) {
        BackendError::Corrupt(source) => OpenError::Damaged {
            path: path.to_owned(),
            finding: source.to_string(),
        },
        other @ (BackendError::Full(_)
        | BackendError::Io(_)
        | BackendError::Damaged { .. }
        | BackendError::Overtaken
        | BackendError::Unknown(_)) => OpenError::Load(other),
    }
}

/// Creates a file unless it is there. SQLite would make it readable for everyone.
pub(super) fn create_private(path: &Path) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::ToSqlConversionFailure(error.into()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A connection that writes.
pub(super) fn connection(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(connection)
}

/// A connection that only reads.
pub(super) fn connect_reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.execute_batch("PRAGMA cache_size = -512;")?;
    Ok(connection)
}

/// A connection for checkpoints.
pub(super) fn connect_checkpointer(path: &Path) -> Result<Connection, Error> {
    let connection = connection(path)?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -64;")?;
    Ok(connection)
}

/// Newest revision that was ever reached.
pub(super) fn newest(connection: &Connection) -> Result<u64, Error> {
    let newest: i64 = connection.query_row("SELECT coalesce(max(revision), 0) FROM ledger", [], |row| row.get(0))?;
    Ok(u64::try_from(newest.max(meta(connection, "revision")?)).unwrap_or(0))
}

/// True if the heads match the ledger. A WAL that is lost during a checkpoint leaves some pages new
/// and others old, each of them valid.
fn is_consistent(connection: &Connection) -> Result<bool, Error> {
    connection.query_row(
        "WITH newest AS (SELECT key, operation, max(revision) AS revision FROM ledger GROUP BY key)
         SELECT NOT EXISTS (SELECT key, revision FROM newest WHERE operation <> 2 EXCEPT SELECT key, revision FROM head)
            AND NOT EXISTS (SELECT key, revision FROM head EXCEPT SELECT key, revision FROM newest WHERE operation <> 2)",
        [],
        |row| row.get(0),
    )
}

/// Reads every head and verifies its checksum.
pub(super) fn load(connection: &Connection) -> Result<Loaded, BackendError> {
    let floor = meta(connection, "floor").map_err(backend_error)?;
    let mut statement = connection
        .prepare(
            "SELECT h.revision, l.key, l.operation, l.previous, l.checksum, l.value, h.key
             FROM head h LEFT JOIN ledger l ON l.revision = h.revision ORDER BY h.key",
        )
        .map_err(backend_error)?;
    let mut rows = statement.query([]).map_err(backend_error)?;
    let mut heads: Vec<Record> = Vec::new();
    while let Some(row) = rows.next().map_err(backend_error)? {
        let head = record(row)?;
        let same = row.get_ref(6).ok().and_then(|key| key.as_str().ok()) == Some(head.key.as_str());
        if !same {
            return Err(BackendError::Damaged {
                revision: head.revision,
            });
        }
        heads.push(head);
    }
    let unsigned = |revision: i64| u64::try_from(revision).unwrap_or(0);
    Ok(Loaded {
        revision: newest(connection).map_err(backend_error)?,
        floor: unsigned(floor),
        heads,
    })
}
