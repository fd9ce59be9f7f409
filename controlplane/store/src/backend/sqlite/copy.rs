//! Copies of a database that may be in use.

use std::path::Path;

use super::mark::Position;
use super::{backend_error, schema, set_meta, signed};
use crate::BackendError;

/// Step by which [`outdate`] raises the revision: more than any server can have gone on since the
/// copy was made.
const AHEAD: u64 = 1_000_000_000;

/// Reason why a database could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The database or the new file cannot be used.
    #[error("copy the database")]
    Copy(#[source] BackendError),
    /// The copy is damaged.
    #[error("check the copy")]
    Check(#[source] BackendError),
    /// The database has lost acknowledged writes.
    #[error("the database's newest revision is {found}, but {reached} was reached")]
    Lost {
        /// Newest revision in the database.
        found: u64,
        /// Newest acknowledged revision.
        reached: u64,
    },
}

/// Copies the database at `from` to `to`, a new or empty file, as a consistent snapshot, even while
/// another process has it open, and verifies the copy. Returns the revision of the snapshot. The
/// copy is on disk when this returns.
pub fn copy(from: &Path, to: &Path) -> Result<u64, CopyError> {
    // Read before the copy: a server may go on meanwhile.
    let known = Position::of(from).map_err(|error| CopyError::Copy(BackendError::Io(error.into())))?;
    schema::connect_reader(from)
        .and_then(|connection| connection.execute("VACUUM INTO ?", [to.to_string_lossy()]))
        .map_err(|error| CopyError::Copy(backend_error(error)))?;
    let synced = std::fs::File::open(to).and_then(|file| file.sync_all());
    synced.map_err(|error| CopyError::Copy(BackendError::Io(error.into())))?;
    let revision = check_copy(to)?;
    if revision < known.revision {
        return Err(CopyError::Lost {
            found: revision,
            reached: known.revision,
        });
    }
    Ok(revision)
}

/// Verifies a copy and returns its revision.
pub fn check_copy(path: &Path) -> Result<u64, CopyError> {
    let check = || {
        let connection = schema::connect_reader(path).map_err(backend_error)?;
        let verdict: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(backend_error)?;
        if verdict != "ok" {
            return Err(BackendError::Corrupt(verdict.into()));
        }
        Ok(schema::load(&connection)?.revision)
    };
    check().map_err(CopyError::Check)
}

/// Invalidates the past of a copy that replaces a database: its revision is raised, and lists and
/// watches from before are refused. Clients that saw later changes of the original would otherwise
/// wait for revisions that lie behind them. Returns the new revision.
pub fn outdate(path: &Path) -> Result<u64, CopyError> {
    raise(path, 0).map_err(CopyError::Copy)
}

/// Invalidates the past of a database that had reached at least `known`.
pub(super) fn raise(path: &Path, known: u64) -> Result<u64, BackendError> {
    let connection = schema::connection(path).map_err(backend_error)?;
    let revision = schema::load(&connection)?.revision.max(known).saturating_add(AHEAD);
    connection
        .execute_batch("PRAGMA synchronous = FULL; BEGIN IMMEDIATE")
        .and_then(|()| set_meta(&connection, "revision", signed(revision)))
        .and_then(|()| set_meta(&connection, "floor", signed(revision)))
        // An archive beside it may have another past.
        .and_then(|()| set_meta(&connection, "archive", 0))
        .and_then(|()| connection.execute_batch("COMMIT"))
        .map_err(backend_error)?;
    Ok(revision)
}
