//! Lock file: one process per database.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::OpenError;

/// A lock file beside the database; the kernel releases the lock when the process ends, however it
/// ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock and writes one line into it, `PID BEGAN BOOT`: the process, its start time in
    /// clock ticks since boot (field 22 of `/proc/PID/stat`), and the boot id, so that a reused
    /// process id is not mistaken for the holder. Fails at once with the holder's id if another
    /// process has it.
    pub fn take(database: &Path) -> Result<Self, OpenError> {
        let path = database.with_added_extension("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(OpenError::Lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(OpenError::Lock(error)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(OpenError::Lock)?;
                return Err(OpenError::Locked {
                    path: database.to_owned(),
                    holder: holder.split(' ').next().unwrap_or_default().trim().to_owned(),
                });
            }
        }
        record(&mut file).map_err(OpenError::Lock)?;
        Ok(Self { _file: file })
    }
}

/// Writes the holder into the lock file.
fn record(file: &mut File) -> io::Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (stat, boot) = (read("/proc/self/stat"), read("/proc/sys/kernel/random/boot_id"));
    // The second field is the program's name in parentheses, which may contain any character.
    let began = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let line = format!("{} {} {}\n", std::process::id(), began.unwrap_or_default(), boot.trim());
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(line.as_bytes())
}
