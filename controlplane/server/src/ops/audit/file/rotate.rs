//! Files of bounded size and number.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size, number and age of the log's files.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The size at which a file is put aside, in bytes.
    pub bytes: u64,
    /// Number of files, the current one included.
    pub files: u32,
    /// The age at which a file that was put aside is removed, when another one is.
    pub age: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 32 << 20,
            files: 5,
            age: None,
        }
    }
}

/// `audit.log`, and older ones as `audit.log.1` (the newest of them) and on; or standard output.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    limits: Limits,
    current: BufWriter<File>,
    size: u64,
}

impl Files {
    /// Opens a file, whose directory is made when it is missing, or standard output for `-`.
    pub(super) fn open(path: &Path, mut limits: Limits) -> std::io::Result<Self> {
        let file = if path.as_os_str() == "-" {
            File::from(std::io::stdout().as_fd().try_clone_to_owned()?)
        } else {
            if let Some(directory) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            append(path)?
        };
        let found = file.metadata()?;
        // Standard output, devices and pipes are not put aside.
        if path.as_os_str() == "-" || !found.is_file() {
            limits.bytes = u64::MAX;
        }
        Ok(Self {
            path: path.to_owned(),
            limits,
            current: BufWriter::with_capacity(16 << 10, file),
            size: found.len(),
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
        // Those before a gap move up; without one the last is replaced.
        let last = self.limits.files.saturating_sub(1);
        let free = (1..last).find(|number| !self.aside(*number).exists());
        for number in (1..=free.unwrap_or(last)).rev() {
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
        self.expire();
        Ok(())
    }

    /// Removes old files. One that cannot be removed costs no record.
    fn expire(&self) {
        let Some(age) = self.limits.age else { return };
        for number in 1..self.limits.files {
            let path = self.aside(number);
            let Ok(found) = path.metadata() else { break };
            let elapsed = found.modified().ok().and_then(|time| time.elapsed().ok());
            if elapsed.is_some_and(|elapsed| elapsed > age) {
                drop(fs::remove_file(&path));
            }
        }
    }

    fn aside(&self, number: u32) -> PathBuf {
        self.path.with_added_extension(number.to_string())
    }
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
