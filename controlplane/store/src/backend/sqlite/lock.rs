//! One process per database.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::OpenError;

/// A lock file beside the database; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock and leaves the process id in it; fails at once with the holder's id when another process has it.
    pub(super) fn take(database: &Path) -> Result<Self, OpenError> {
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
                    holder: holder.trim().to_owned(),
                });
            }
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
        written.map_err(OpenError::Lock)?;
        Ok(Self { _file: file })
    }
}
