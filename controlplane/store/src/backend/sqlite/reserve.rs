//! Reserve on the disk for deletions: they still succeed when the disk is full.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate, posix_fallocate};
use tracing::warn;

use super::wal;

/// Size of the reserve: half of it exceeds the WAL's size before a checkpoint, the other half is
/// for the database that the checkpoint writes to.
const BYTES: i64 = 16 << 20;

/// A file of that size beside the database.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Kept open: closing any file descriptor of a file drops the locks that SQLite holds on it in
    /// this process (POSIX locks).
    database: File,
    log: PathBuf,
    path: PathBuf,
    pub(super) kept: bool,
}

impl Reserve {
    pub(super) fn of(database: &Path) -> io::Result<Self> {
        Ok(Self {
            database: OpenOptions::new().write(true).open(database)?,
            log: wal::path(database),
            path: database.with_added_extension("reserve"),
            kept: false,
        })
    }

    /// Allocates the reserve, if it is not allocated yet and the disk has the space.
    pub(super) fn keep(&mut self) -> bool {
        if !self.kept {
            let taken = self.allocate();
            self.kept = taken.is_ok();
            if let Err(error) = taken {
                warn!(%error, "no room can be kept on the disk for deletions");
                self.release();
            }
        }
        self.kept
    }

    fn allocate(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        Ok(posix_fallocate(options.open(&self.path)?, 0, BYTES)?)
    }

    /// Releases the reserve to the database and its WAL. `false` if there was none.
    pub(super) fn release(&mut self) -> bool {
        let removed = std::fs::remove_file(&self.path);
        let given = std::mem::take(&mut self.kept) && removed.is_ok();
        if given {
            // The space is allocated at the ends of these files at once: otherwise other writers,
            // mostly container logs, would take it.
            let log = OpenOptions::new().write(true).open(&self.log);
            let extended = log.and_then(|log| extend(&log)).and(extend(&self.database));
            if let Err(error) = extended {
                warn!(%error, "the room that was kept is not the database's alone");
            }
        }
        given
    }
}

fn extend(file: &File) -> io::Result<()> {
    let end = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
    Ok(fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, end, BYTES / 2)?)
}
