//! Files of bounded size and number.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size and number of the log's files.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The size at which a file is put aside, in bytes.
    pub bytes: u64,
    /// Number of files, the current one included.
    pub files: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 32 << 20,
            files: 5,
        }
    }
}

/// `audit.log`, and older ones as `audit.log.1` (the newest of them) and on.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    limits: Limits,
    current: BufWriter<File>,
    size: u64,
}

impl Files {
    pub(super) fn open(directory: &Path, limits: Limits) -> std::io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join("audit.log");
        let file = append(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            limits,
            current: BufWriter::with_capacity(16 << 10, file),
            size,
        })
    }

    pub(super) fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.size > 0 && self.size.saturating_add(length) > self.limits.bytes {
            self.rotate()?;
        }
        self.current.write_all(line)?;
        self.size = self.size.saturating_add(length);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> std::io::Result<()> {
        self.current.flush()
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        self.current.flush()?;
        for number in (1..self.limits.files).rev() {
            let from = if number == 1 {
                self.path.clone()
            } else {
                self.aside(number - 1)
            };
            if from.exists() {
                fs::rename(&from, self.aside(number))?;
            }
        }
        if self.limits.files <= 1 {
            fs::remove_file(&self.path)?;
        }
        self.current = BufWriter::with_capacity(16 << 10, append(&self.path)?);
        self.size = 0;
        Ok(())
    }

    fn aside(&self, number: u32) -> PathBuf {
        self.path.with_added_extension(number.to_string())
    }
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
