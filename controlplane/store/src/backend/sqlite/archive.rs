//! The archive: superseded versions that leave the ledger, compressed, in a separate file beside
//! the database.
//!
//! ```text
//! name     id        ─► key
//! version  until     ─► revision, name, fork node, times, base, difference     one row for each version that revision `until` superseded
//! base     id, last  ─► the first version of a group, whole                     removed with the last version that needs it
//! meta     identity, archived, since, since_time                              the identity is that in the database's `archive`
//! ```
//!
//! A thread follows the floor of compaction: it reads superseded versions below it from the ledger,
//! in small batches, and commits them here; only then may compaction remove them there. So after a
//! crash at any time each version is in at least one of the two files. The cluster works without
//! the archive: a damaged one is set aside, and one with a gap, or that the disk has no space for,
//! is replaced by a new one.

pub(super) mod delta;
mod read;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, params};
use tracing::{debug, error, warn};

use super::{backend_error, operation, record, schema, signed, unsigned};
use crate::backend::{BackendError, Operation, Since};
use crate::options::{Kept, Options};
use crate::{Class, Key, OpenError};
pub(super) use read::{ArchiveReader, first_after};
use table::{Superseded, Table};

/// Ledger rows that one transaction of the archive visits, and the bytes of versions after which it
/// ends.
const ROWS: usize = 128;
const BYTES: usize = 1 << 20;
/// Pause between two transactions, for others that wait for the disk.
const PAUSE: Duration = Duration::from_millis(2);
/// Most revisions that the ledger keeps for an archive that cannot be written.
const LONGEST_BACKLOG: u64 = 100_000;

/// State that the archive's thread shares with its users.
#[derive(Debug)]
pub(super) struct State {
    /// Versions superseded up to this revision are archived, or were given up.
    pub(super) archived: AtomicU64,
    /// The compaction floor.
    wanted: AtomicU64,
    /// The disk is short of space.
    short: AtomicBool,
    /// The last transaction failed.
    failing: AtomicBool,
    /// The thread has ended and compaction goes on without it: the archive has a gap.
    lost: AtomicBool,
    /// Incremented when the file is replaced.
    pub(super) generation: AtomicU64,
}

impl State {
    /// True if superseded versions get into the archive.
    pub(super) fn works(&self) -> bool {
        !self.is_lost() && !self.failing.load(Ordering::Relaxed)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// The archive's thread.
#[derive(Debug)]
pub(super) struct Archiver {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<State>,
}

impl Archiver {
    /// Opens the archive of a database, or creates a new one if there is none, or if it belongs to
    /// another database or has a gap; and starts its thread.
    pub(super) fn start(
        database: &Path,
        connection: &Connection,
        kept: Kept,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Load(backend_error(error));
        let ledger = schema::connect_reader(database).map_err(failed)?;
        let swept = unsigned(super::meta(&ledger, "swept").map_err(failed)?);
        let newest = schema::newest(&ledger).map_err(failed)?;
        let known = super::meta(connection, "archive").map_err(failed)?;
        let identity = match known {
            0 => connection
                .query_row("SELECT random() | 1", [], |row| row.get(0))
                .map_err(failed)?,
            known => known,
        };
        let path = path(database);
        let begin = beginning(swept, (options.clock)());
        let open = |continues| Table::open(&path, continues, begin, identity).map_err(backend_error);
        let table = match open(known != 0) {
            Ok(table) if table.identity == identity && (swept..=newest).contains(&table.archived) => Ok(table),
            Ok(other) => {
                // Closing it later would remove the new file's WAL.
                drop(other);
                open(false)
            }
            Err(error) if is_damage(&error) => {
                warn!(error = &error as &dyn std::error::Error, archive = %path.display(), "set the archive of the past aside");
                set_aside(&path);
                open(false)
            }
            Err(error) => Err(error),
        };
        // A full disk does not keep the cluster from starting: the thread retries.
        let table = table.and_then(|table| {
            if known != identity {
                super::set_meta(connection, "archive", identity).map_err(backend_error)?;
            }
            Ok(table)
        });
        let table = table.inspect_err(|error| {
            warn!(error = error as &dyn std::error::Error, archive = %path.display(), "open the archive of the past");
        });
        let table = table.ok();
        let state = Arc::new(State {
            archived: AtomicU64::new(table.as_ref().map_or(swept, |table| table.archived)),
            wanted: AtomicU64::new(0),
            short: AtomicBool::new(false),
            failing: AtomicBool::new(table.is_none()),
            lost: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        });
        let worker = Worker {
            path,
            ledger,
            identity,
            table,
            state: Arc::clone(&state),
            kept,
            class: options.class,
            clock: options.clock,
            told: false,
        };
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("store-archive".into())
            .spawn(move || worker.run(&woken))
            .map_err(OpenError::Thread)?;
        Ok(Self {
            wake: Some(wake),
            thread: Some(thread),
            state,
        })
    }

    /// Requests archiving up to a floor, and returns how far it has come: compaction may go that
    /// far.
    pub(super) fn advance(&self, floor: u64, short: bool) -> u64 {
        self.state.short.store(short, Ordering::Relaxed);
        let archived = self.state.archived.load(Ordering::Acquire);
        if archived < floor {
            self.state.wanted.fetch_max(floor, Ordering::Relaxed);
            // If the channel is full, a wakeup is already pending.
            if let Some(wake) = &self.wake
                && let Err(TrySendError::Disconnected(())) = wake.try_send(())
            {
                // Without its thread there is no archive, and the ledger must not grow for it.
                if !self.state.lost.swap(true, Ordering::Release) {
                    error!("the archive's thread has ended: until the next start the past is that of the ledger alone");
                }
                return floor;
            }
        }
        archived.min(floor)
    }

    /// A reader of the archive.
    pub(super) fn reader(&self, database: &Path) -> ArchiveReader {
        ArchiveReader::new(database, Arc::clone(&self.state))
    }

    /// Ends the thread after the transaction that it is in.
    pub(super) fn stop(&mut self) {
        self.wake = None;
        // A panic of the thread was reported where it happened.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Path of the archive of a database.
pub(super) fn path(database: &Path) -> PathBuf {
    database.with_added_extension("history")
}

/// Start of a new archive's past: the ledger's own, which is complete after the swept revision.
fn beginning(swept: u64, now: u64) -> Since {
    Since {
        revision: swept,
        time: if swept == 0 { 0 } else { now },
    }
}

/// True for errors that a retry does not fix.
fn is_damage(error: &BackendError) -> bool {
    matches!(error, BackendError::Corrupt(_) | BackendError::Damaged { .. })
}

/// Keeps the first damaged archive for inspection.
fn set_aside(path: &Path) {
    let aside = path.with_added_extension("damaged");
    if !aside.exists()
        && let Err(error) = std::fs::rename(path, aside)
    {
        warn!(%error, "set the damaged archive aside");
    }
}

struct Worker {
    path: PathBuf,
    ledger: Connection,
    identity: i64,
    /// `None` after a failure; the next step opens it again.
    table: Option<Table>,
    state: Arc<State>,
    kept: Kept,
    class: fn(&str) -> Class,
    clock: fn() -> u64,
    /// True if the failure was logged.
    told: bool,
}

impl Worker {
    /// Follows the floor until the archiver is dropped.
    fn run(mut self, woken: &Receiver<()>) {
        let mut more = false;
        loop {
            if more {
                match woken.recv_timeout(PAUSE) {
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else if woken.recv().is_err() {
                return;
            }
            let wanted = self.state.wanted.load(Ordering::Relaxed);
            match self.step(wanted) {
                Ok(left) => {
                    more = left;
                    self.told = false;
                    self.state.failing.store(false, Ordering::Relaxed);
                }
                Err(failure) => {
                    more = false;
                    self.fail(&failure, wanted);
                }
            }
        }
    }

    /// Runs one transaction; `true` if there is more to do.
    fn step(&mut self, floor: u64) -> Result<bool, BackendError> {
        let after = self.state.archived.load(Ordering::Relaxed);
        let (superseded, reached) = self.read(after, floor)?;
        let mut table = if let Some(table) = self.table.take() {
            table
        } else {
            self.open(after)?
        };
        let pruned = table.append(&superseded, reached, self.kept, (self.clock)())?;
        self.table = Some(table);
        self.state.archived.store(reached, Ordering::Release);
        Ok(reached < floor || pruned)
    }

    /// Opens the archive if it continues at `after`; otherwise begins a new one.
    fn open(&self, after: u64) -> Result<Table, BackendError> {
        let begin = beginning(after, (self.clock)());
        let open = |continues| Table::open(&self.path, continues, begin, self.identity).map_err(backend_error);
        let table = open(true)?;
        if table.identity == self.identity && table.archived >= after {
            return Ok(table);
        }
        drop(table);
        self.state.generation.fetch_add(1, Ordering::Relaxed);
        open(false)
    }

    /// Reads the versions superseded after a revision, up to the floor or the limits of one
    /// transaction, and returns how far they are complete.
    fn read(&self, after: u64, floor: u64) -> Result<(Vec<Superseded>, u64), BackendError> {
        let mut visit = self
            .ledger
            .prepare_cached(
                "SELECT p.revision, p.key, p.operation, p.previous, p.checksum, p.value, p.time,
                        l.revision, l.key, l.operation, l.time, l.previous
                 FROM ledger l LEFT JOIN ledger p ON p.revision = l.previous
                 WHERE l.revision > ? AND l.revision <= ? ORDER BY l.revision LIMIT ?",
            )
            .map_err(backend_error)?;
        let limit = i64::try_from(ROWS).unwrap_or(i64::MAX);
        let mut rows = visit
            .query(params![signed(after), signed(floor), limit])
            .map_err(backend_error)?;
        let (mut found, mut bytes, mut visited, mut reached) = (Vec::new(), 0, 0, after);
        while let Some(row) = rows.next().map_err(backend_error)? {
            visited += 1;
            reached = unsigned(row.get(7).map_err(backend_error)?);
            if let Some(version) = self.superseded(row, reached)? {
                bytes += version.bytes.len();
                found.push(version);
            }
            if bytes >= BYTES {
                return Ok((found, reached));
            }
        }
        Ok((found, if visited < ROWS { floor.max(after) } else { reached }))
    }

    /// The version that a row superseded, if its resource keeps history.
    fn superseded(&self, row: &rusqlite::Row<'_>, until: u64) -> Result<Option<Superseded>, BackendError> {
        let text: String = row.get(8).map_err(backend_error)?;
        // Damage in the ledger is not the archive's problem: unreadable versions are skipped.
        let skip = |error: &BackendError| {
            warn!(
                error = error as &dyn std::error::Error,
                "a version that is superseded cannot be archived"
            );
            Ok(None)
        };
        let (Ok(key), Some(operation)) = (Key::parse(&text), row.get(9).ok().and_then(operation)) else {
            return skip(&BackendError::Damaged { revision: until });
        };
        let class = (self.class)(key.resource());
        if class == (Class::HeadOnly { time_to_live: None }) {
            return Ok(None);
        }
        let deleted = operation == Operation::Delete;
        let ended = unsigned(row.get(10).map_err(backend_error)?);
        let previous = unsigned(row.get(11).map_err(backend_error)?);
        let there = row.get_ref(0).is_ok_and(|revision| revision.as_i64().is_ok());
        let (began, bytes) = if there {
            match record(row) {
                Ok(record) => (unsigned(row.get(6).map_err(backend_error)?), record.bytes),
                Err(error) => return skip(&error),
            }
        } else if deleted && previous > 0 && class != Class::Kept {
            // If only the newest version is kept, the row of the deletion has its bytes.
            match self.last(until) {
                Ok(bytes) => (0, bytes),
                Err(error) if is_damage(&error) => return skip(&error),
                Err(error) => return Err(error),
            }
        } else {
            return Ok(None);
        };
        Ok(Some(Superseded {
            key,
            revision: previous,
            began,
            until,
            ended,
            deleted,
            bytes,
        }))
    }

    /// The final bytes of a deleted object.
    fn last(&self, revision: u64) -> Result<Bytes, BackendError> {
        let mut read = self
            .ledger
            .prepare_cached("SELECT revision, key, operation, previous, checksum, value FROM ledger WHERE revision = ?")
            .map_err(backend_error)?;
        let mut rows = read.query([signed(revision)]).map_err(backend_error)?;
        let row = rows.next().map_err(backend_error)?;
        Ok(record(row.ok_or(BackendError::Damaged { revision })?)?.bytes)
    }

    /// Gives up the past if the archive cannot be written; otherwise retries when the floor rises.
    fn fail(&mut self, failure: &BackendError, wanted: u64) {
        self.state.failing.store(true, Ordering::Relaxed);
        let first = !std::mem::replace(&mut self.told, true);
        if first {
            error!(failure = failure as &dyn std::error::Error, "archive the past");
        }
        let archived = self.state.archived.load(Ordering::Relaxed);
        let damaged = is_damage(failure);
        let short = self.state.short.load(Ordering::Relaxed) && matches!(failure, BackendError::Full(_));
        self.table = None;
        if !damaged && !short && wanted.saturating_sub(archived) < LONGEST_BACKLOG {
            return;
        }
        warn!(archive = %self.path.display(), "the past is given up and begins anew");
        if damaged {
            set_aside(&self.path);
        }
        let begin = beginning(wanted, (self.clock)());
        let table = Table::open(&self.path, false, begin, self.identity);
        self.state.generation.fetch_add(1, Ordering::Relaxed);
        match table {
            Ok(table) => self.table = Some(table),
            Err(error) => debug!(error = &error as &dyn std::error::Error, "begin the archive anew"),
        }
        self.state.archived.store(wanted, Ordering::Release);
    }
}
