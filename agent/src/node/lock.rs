//! Exclusive lock of a state directory.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILE: &str = "agent.lock";

/// Failure to lock a state directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process holds the lock.
    #[error("the state directory {} is in use by process {holder}", directory.display())]
    Held {
        /// Directory that is locked.
        directory: PathBuf,
        /// `PID (skiff-agent COMMAND)`, or `unknown` until the holder has written its record.
        holder: String,
    },
    /// The lock file could not be opened or written.
    #[error("lock {}", path.display())]
    File {
        /// Path of the lock file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
}

/// Lock of a state directory, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `DIRECTORY/agent.lock` for `command` (`run`, `cleanup`), and creates the directory if
    /// it is absent.
    ///
    /// The file then holds one line, `PID BEGAN BOOT COMMAND`: the process, its start time in clock
    /// ticks since boot (field 22 of `/proc/PID/stat`) and the boot ID, so that another process
    /// with the same PID is not taken for the holder.
    ///
    /// # Errors
    /// [`Error::Held`] while another process has it; [`Error::File`] when the file cannot
    /// be opened or written.
    pub fn take(directory: &Path, command: &str) -> Result<Self, Error> {
        let path = directory.join(FILE);
        let failed = |source| Error::File {
            path: path.clone(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Held {
                    directory: directory.to_owned(),
                    holder: holder(&mut file).unwrap_or_else(|| "unknown".to_owned()),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        record(&mut file, command).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// Writes the holder's record.
fn record(file: &mut File, command: &str) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is the command in parentheses, which may contain any characters.
    let began = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let line = format!(
        "{} {} {} {command}\n",
        std::process::id(),
        began.unwrap_or_default(),
        boot.trim()
    );
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(line.as_bytes())
}

fn holder(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(256).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let pid: u32 = words.next()?.parse().ok()?;
    Some(format!("{pid} (skiff-agent {})", words.nth(2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let directory = std::env::temp_dir().join(format!("skiff-lock-{}", std::process::id()));
        let first = Lock::take(&directory, "run").unwrap();
        let refused = Lock::take(&directory, "cleanup").unwrap_err().to_string();
        let own = std::process::id();
        assert!(
            refused.ends_with(&format!("is in use by process {own} (skiff-agent run)")),
            "{refused}"
        );
        drop(first);
        Lock::take(&directory, "cleanup").unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
