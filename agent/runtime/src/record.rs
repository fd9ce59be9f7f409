//! Small files that survive a crash whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How sure a write has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives the writer.
    Process,
    /// Survives the machine.
    Disk,
}

/// Replaces a file as a whole; mode 0600.
pub(crate) fn write(path: &Path, value: &impl Serialize, durability: Durability) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if durability == Durability::Disk {
        file.sync_data()?;
    }
    fs::rename(&new, path)?;
    match path.parent() {
        Some(parent) if durability == Durability::Disk => File::open(parent)?.sync_all(),
        Some(_) | None => Ok(()),
    }
}

/// Reads such a file; `None` when there is none.
pub(crate) fn read<Value: DeserializeOwned>(path: &Path) -> io::Result<Option<Value>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(4 << 20).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}
