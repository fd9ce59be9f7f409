//! The mark beside a database: the last position of its ledger and WAL, to detect lost writes.
//!
//! It is written after each transaction without waiting for the disk, which takes microseconds. So
//! it is never ahead of the database, and exact unless the whole machine crashed; then it may be
//! old, and hides a loss rather than reporting a false one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{sync_directory, wal};

/// A position of the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) revision: u64,
    /// Pages in the WAL; 0 if unknown.
    pub(super) frames: u64,
    /// Salts of the WAL, which change when it is reset.
    pub(super) salts: (u32, u32),
}

impl Position {
    /// Reads the mark of a database; a missing or unreadable one is an unknown position.
    pub(super) fn of(database: &Path) -> io::Result<Self> {
        match std::fs::read(path(database)) {
            Ok(text) => Ok(Self::parse(&String::from_utf8_lossy(&text)).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace();
        Some(Self {
            revision: numbers.next()?.parse().ok()?,
            frames: numbers.next()?.parse().ok()?,
            salts: (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?),
        })
    }
}

/// The open mark.
#[derive(Debug)]
pub(super) struct Mark {
    database: PathBuf,
    file: File,
    position: Position,
}

impl Mark {
    /// Sets the mark to a revision, on the disk.
    pub(super) fn open(database: &Path, revision: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let mut mark = Self {
            database: database.to_owned(),
            file: options.open(path(database))?,
            position: Position::default(),
        };
        mark.settle(revision)?;
        sync_directory(database)?;
        Ok(mark)
    }

    /// Records a durable transaction, with the pages in the WAL.
    pub(super) fn advance(&mut self, revision: u64, frames: u64) -> io::Result<()> {
        if frames <= self.position.frames || self.position.frames == 0 {
            self.position.salts = wal::salts(&self.database)?;
        }
        (self.position.revision, self.position.frames) = (revision, frames);
        self.write()
    }

    /// Makes the mark independent of the WAL, on the disk, before the WAL is removed.
    pub(super) fn settle(&mut self, revision: u64) -> io::Result<()> {
        self.position = Position {
            revision,
            ..Position::default()
        };
        self.write()?;
        self.file.sync_data()
    }

    fn write(&self) -> io::Result<()> {
        let Position {
            revision,
            frames,
            salts: (first, second),
        } = self.position;
        let line = format!("{revision:020} {frames:010} {first:010} {second:010}\n");
        self.file.write_all_at(line.as_bytes(), 0)
    }
}

pub(super) fn path(database: &Path) -> PathBuf {
    database.with_added_extension("mark")
}
