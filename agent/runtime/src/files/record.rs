//! Small files that are written atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Identity;

/// Replaces a file atomically; mode 0600. It survives the writer's crash, and after [`settle`] the
/// machine's.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    put(path, &serde_json::to_vec(value)?)
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

/// Padding that [`replace`] can use.
const ROOM: usize = 512;
/// Write size that the kernel does not interrupt, even if the process is killed.
const PIECE: usize = 4096;

/// Like [`write()`], with padding so that [`replace`] can store a somewhat longer value.
pub(crate) fn write_roomy(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(value)?;
    bytes.resize((bytes.len() + ROOM).next_multiple_of(ROOM), b' ');
    put(path, &bytes)
}

/// Overwrites a file of [`write_roomy`] in one write, if the value fits. A rename would have to
/// wait for the new file to reach the disk.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(value)?;
    let file = OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or_default();
    if bytes.len() > room || room > PIECE {
        return put(path, &bytes);
    }
    bytes.resize(room, b' ');
    file.write_all_at(&bytes, 0)
}

/// Syncs a written file to the disk; does nothing if it was removed meanwhile.
pub(crate) fn settle(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    file.sync_data()?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Reads a record; `None` if there is none.
pub(crate) fn read<Value: DeserializeOwned>(path: &Path) -> io::Result<Option<Value>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(4 << 20).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Reads the user and groups of an OCI configuration's process.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let value: serde_json::Value = read(path).ok().flatten()?;
    let user = value.pointer("/process/user").or_else(|| value.get("user"))?;
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let groups = user.get("additionalGids").and_then(serde_json::Value::as_array);
    Some(Identity {
        uid: user.get("uid").and_then(id)?,
        gid: user.get("gid").and_then(id)?,
        groups: groups.into_iter().flatten().filter_map(id).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_record_is_what_was_written_last_whatever_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        assert!(replace(&path, &"none").is_err());
        write_roomy(&path, &"first").unwrap();
        let file = || fs::metadata(&path).unwrap().ino();
        for (length, same) in [(300, true), (1, true), (5000, false), (1, false)] {
            let (before, value) = (file(), "x".repeat(length));
            replace(&path, &value).unwrap();
            assert_eq!(read::<String>(&path).unwrap(), Some(value), "{length}");
            assert_eq!(file() == before, same, "{length}");
        }
    }
}
