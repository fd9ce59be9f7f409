//! Checkpoints of the WAL, on a thread beside the writer.

use std::os::raw::c_int;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tracing::{debug, warn};

use super::schema;

/// Pages in the WAL that trigger a checkpoint: 4 MiB.
const PAGES: i32 = 1000;
/// Pages in the WAL at which the writer itself runs a checkpoint, because the thread cannot keep
/// up: 32 MiB.
const TOO_MANY: i32 = 8000;

/// A thread that runs a checkpoint when the WAL has grown.
#[derive(Debug)]
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicI32>,
    /// The thread has run since the writer last caught up.
    behind: Arc<AtomicBool>,
}

impl Checkpointer {
    pub(super) fn start(path: &Path) -> Result<Self, std::io::Error> {
        let (wake, woken) = sync_channel(1);
        let behind = Arc::new(AtomicBool::new(false));
        let (path, flag) = (path.to_owned(), Arc::clone(&behind));
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".into())
            .spawn(move || run(&path, &woken, &flag))?;
        Ok(Self {
            wake: Some(wake),
            thread: Some(thread),
            pages: Arc::default(),
            behind,
        })
    }

    /// The writer's connection: durable commits, and checkpoints left to the checkpointer.
    pub(super) fn connect(&self, path: &Path) -> rusqlite::Result<Connection> {
        let mut connection = schema::connection(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
             PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -1024; PRAGMA cell_size_check = ON;",
        )?;
        connection.set_prepared_statement_cache_capacity(32);
        connection.wal_hook(Some(self.hook()))?;
        Ok(connection)
    }

    /// Pages in the WAL after the last commit.
    pub(super) fn pages(&self) -> u64 {
        u64::try_from(self.pages.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Hook that the writer's connection calls after each commit with the number of pages in the
    /// WAL.
    pub(super) fn hook(&self) -> impl FnMut(&mut Wal, c_int) -> rusqlite::Result<()> + Send + 'static {
        let (wake, known) = (self.wake.clone(), Arc::clone(&self.pages));
        let mut asked_at = 0;
        move |_, pages| {
            known.store(pages, Ordering::Relaxed);
            if pages < asked_at {
                asked_at = 0;
            }
            if pages >= asked_at + PAGES {
                asked_at = pages;
                // If the channel is full, a wakeup is already pending.
                if let Some(wake) = &wake
                    && let Err(TrySendError::Disconnected(())) = wake.try_send(())
                {
                    warn!("the checkpoint thread has ended");
                }
            }
            Ok(())
        }
    }

    /// Called between two batches: if the thread cannot keep up, the writer itself completes the
    /// checkpoint, so that the WAL can be reset.
    pub(super) fn catch_up(&self, connection: Option<&Connection>) {
        let needed = self.pages.load(Ordering::Relaxed) > TOO_MANY && self.behind.swap(false, Ordering::Relaxed);
        if let Some(connection) = connection.filter(|_| needed) {
            debug!("checkpoint between two batches");
            // Refused while the thread is within its own: the next batch tries again.
            if checkpoint(connection) {
                self.behind.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Ends the thread. The writer's connection must be closed before: its hook can wake the thread
    /// too.
    pub(super) fn stop(&mut self) {
        self.wake = None;
        // A panic in it was reported where it happened.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn run(path: &Path, woken: &Receiver<()>, behind: &AtomicBool) {
    let mut connection = None;
    while woken.recv().is_ok() {
        if connection.is_none() {
            connection = schema::connect_checkpointer(path)
                .inspect_err(|error| {
                    warn!(
                        error = error as &dyn std::error::Error,
                        "open the database for a checkpoint"
                    );
                })
                .ok();
        }
        if let Some(opened) = &connection {
            checkpoint(opened);
        }
        // The writer may have appended meanwhile: it alone can complete the checkpoint.
        behind.store(true, Ordering::Relaxed);
    }
}

/// Runs one passive checkpoint; tells whether another one was in its way.
fn checkpoint(connection: &Connection) -> bool {
    let refused = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(0));
    refused.unwrap_or_else(|error| {
        warn!(
            error = &error as &dyn std::error::Error,
            "checkpoint failed; the log keeps the writes"
        );
        false
    })
}

#[cfg(test)]
mod tests {
    use crate::Options;
    use crate::backend::sqlite::mark::Position;
    use crate::backend::sqlite::schema::{connect_checkpointer, prepare};

    use super::Checkpointer;

    /// SQLite syncs at every commit in this mode: `synchronous` is 2, which is FULL. Only a power
    /// failure can test the effect.
    #[test]
    fn commits_wait_for_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        prepare(&path, &Position::default(), &Options::default()).unwrap();
        let checkpointer = Checkpointer::start(&path).unwrap();
        for connection in [checkpointer.connect(&path), connect_checkpointer(&path)] {
            let connection = connection.unwrap();
            let read = |name: &str| {
                connection
                    .pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
                    .unwrap()
            };
            assert_eq!(read("synchronous"), 2.into());
            assert_eq!(read("journal_mode"), "wal".to_owned().into());
        }
    }
}
