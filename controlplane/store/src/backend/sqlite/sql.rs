//! Queries in SQL for people: over the present, its past, and records of requests. They read only,
//! beside a running control plane, and end after a time that the caller sets.
//!
//! ```text
//! objects   group, resource, namespace, name, revision, time, json
//! versions  … and until, ended, deleted: of the present and of the past, as far as that is known
//! audit     time, user, impersonated, verb, resource, namespace, name, subresource, code, agent, uri, json
//! ```

use std::path::Path;
use std::sync::Mutex;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, ErrorCode};

use super::archive::delta::Codec;
use super::{archive, schema, unsigned};

/// Operations of SQLite's machine between two looks at the time.
const OPERATIONS: i32 = 10_000;

/// The parts of a key `k`, and a time `t` in milliseconds.
const PARTS: &str =
    "key_part(k, 0) AS \"group\", key_part(k, 1) AS resource, key_part(k, 2) AS namespace, key_part(k, 3) AS name,
     revision, strftime('%Y-%m-%dT%H:%M:%fZ', nullif(t, 0) / 1000.0, 'unixepoch') AS time";
const ENDED: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', nullif(e, 0) / 1000.0, 'unixepoch') AS ended";

/// Versions of the ledger, with those that superseded them.
const RECENT: &str = "SELECT l.key AS k, l.revision AS revision, l.time AS t, u.revision AS until, u.time AS e,
     coalesce(u.operation = 2, 0) AS deleted, CAST(l.value AS TEXT) AS json
     FROM main.ledger l LEFT JOIN main.ledger u ON u.previous = l.revision WHERE l.operation <> 2";
/// Versions of the archive. What is still in the ledger, too, is told once.
const ARCHIVED: &str = "SELECT n.key AS k, v.revision AS revision, v.began AS t, v.until AS until, v.ended AS e,
     v.deleted AS deleted, unpacked(b.size, b.data, v.size, v.data) AS json
     FROM history.version v JOIN history.name n ON n.id = v.name LEFT JOIN history.base b ON b.id = v.base
     WHERE v.revision NOT IN (SELECT revision FROM main.ledger)";

const AUDIT: &str = "CREATE TEMP TABLE audit (time, user, impersonated, verb, resource, namespace, name, subresource, code, agent, uri, json)";
const RECORD: &str = "INSERT INTO temp.audit SELECT json ->> '$.requestReceivedTimestamp', json ->> '$.user.username',
     json ->> '$.impersonatedUser.username', json ->> '$.verb', json ->> '$.objectRef.resource',
     json ->> '$.objectRef.namespace', coalesce(json ->> '$.objectRef.name', json ->> '$.responseObject.metadata.name'),
     json ->> '$.objectRef.subresource', json ->> '$.responseStatus.code', json ->> '$.userAgent', json ->> '$.requestURI', json
     FROM (SELECT ?1 AS json) WHERE CASE WHEN json_valid(json) THEN json ->> '$.stage' END = 'ResponseComplete'";

/// Failure of a query.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The query took longer than it may.
    #[error("the query takes too long")]
    Late,
    /// The query does more than read.
    #[error("only queries that read are allowed")]
    Writes,
    /// SQLite refuses the query or cannot read the files.
    #[error("the query fails")]
    Refused(#[source] Error),
}

impl From<Error> for SqlError {
    fn from(error: Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Self::Late,
            Some(ErrorCode::ReadOnly | ErrorCode::AuthorizationForStatementDenied) => Self::Writes,
            _ => Self::Refused(error),
        }
    }
}

/// Value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Real(f64),
    /// Text; bytes as far as they are text.
    Text(String),
}

/// A database that is only read, with its past.
#[derive(Debug)]
pub struct Sql {
    connection: Connection,
}

impl Sql {
    /// Opens a database beside its control plane.
    pub fn open(database: &Path) -> Result<Self, SqlError> {
        let connection = schema::connect_reader(database)?;
        let deterministic = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        connection.create_scalar_function("key_part", 2, deterministic, key_part)?;
        let codec = Mutex::new(Codec::new().map_err(|error| Error::UserFunctionError(error.into()))?);
        connection.create_scalar_function("unpacked", 4, deterministic, move |context| unpacked(&codec, context))?;
        let past = archive::path(database);
        let mut versions = format!("SELECT {PARTS}, until, {ENDED}, deleted, json FROM ({RECENT})");
        if past.exists() {
            connection.execute("ATTACH ?1 AS history", [past.to_string_lossy()])?;
            versions = format!("{versions} UNION ALL SELECT {PARTS}, until, {ENDED}, deleted, json FROM ({ARCHIVED})");
        }
        connection.execute_batch(&format!(
            "PRAGMA temp_store = FILE; CREATE TEMP VIEW versions AS {versions};
             CREATE TEMP VIEW objects AS SELECT {PARTS}, json FROM (
                SELECT l.key AS k, l.revision AS revision, l.time AS t, CAST(l.value AS TEXT) AS json
                FROM main.head h JOIN main.ledger l ON l.revision = h.revision);
             {AUDIT};"
        ))?;
        Ok(Self { connection })
    }

    /// Adds lines of an audit log.
    pub fn add(&mut self, lines: impl Iterator<Item = String>) -> Result<(), SqlError> {
        self.connection
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
        let transaction = self.connection.unchecked_transaction()?;
        {
            let mut add = transaction.prepare(RECORD)?;
            for line in lines {
                add.execute([line])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Runs a query: `take` gets the names of the columns, then each row, until it returns false.
    /// `is_late` is asked now and then.
    pub fn query<E: From<SqlError>>(
        &mut self,
        sql: &str,
        is_late: impl FnMut() -> bool + Send + 'static,
        mut take: impl FnMut(Vec<Cell>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let failed = |error: Error| E::from(SqlError::from(error));
        self.connection.authorizer(Some(only_reads)).map_err(failed)?;
        self.connection
            .progress_handler(OPERATIONS, Some(is_late))
            .map_err(failed)?;
        let mut statement = self.connection.prepare(sql).map_err(failed)?;
        let names = statement.column_names().map(|name| Cell::Text(name.to_owned()));
        let names: Vec<Cell> = names.collect();
        let width = names.len();
        if !take(names)? {
            return Ok(());
        }
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let cells = (0..width).map(|at| row.get_ref(at).map(cell));
            let cells = cells.collect::<Result<Vec<_>, Error>>().map_err(failed)?;
            if !take(cells)? {
                break;
            }
        }
        Ok(())
    }
}

fn only_reads(context: AuthContext<'_>) -> Authorization {
    let reads = matches!(
        context.action,
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Function { .. } | AuthAction::Recursive
    );
    if reads {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Cell::Text(String::from_utf8_lossy(bytes).into_owned()),
    }
}

/// `key_part(KEY, NUMBER)`: a part of a key; the core group is empty, as everywhere else.
fn key_part(context: &Context<'_>) -> Result<String, Error> {
    let (key, number) = (context.get_raw(0).as_str()?, context.get::<i64>(1)?);
    let part = usize::try_from(number)
        .ok()
        .and_then(|number| key.split('/').nth(number));
    let part = part.unwrap_or_default();
    Ok(if number == 0 && part == "core" { "" } else { part }.to_owned())
}

/// `unpacked(SIZE, BASE, SIZE, DIFFERENCE)`: a version of the archive.
fn unpacked(codec: &Mutex<Codec>, context: &Context<'_>) -> Result<Option<String>, Error> {
    let failed = |error: std::io::Error| Error::UserFunctionError(error.into());
    let size = |at| Ok::<_, Error>(usize::try_from(unsigned(context.get(at)?)).unwrap_or(usize::MAX));
    if context.get_raw(1) == ValueRef::Null {
        return Ok(None);
    }
    let mut codec = codec.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let base = codec
        .unpack(context.get_raw(1).as_blob()?, size(0)?, &[])
        .map_err(failed)?;
    let bytes = codec
        .unpack(context.get_raw(3).as_blob()?, size(2)?, &base)
        .map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
