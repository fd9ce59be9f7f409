//! Small record files, written atomically.

use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;

use crate::Error;

/// Suffix of a temporary file.
const DRAFT: &str = "draft";

/// Reads a record; a truncated one counts as absent.
pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::io("read", path, source)),
    }
}

/// Reads a record during a listing of its directory: a leftover temporary file counts as absent,
/// too.
pub(crate) fn read_whole<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    if path.extension().is_some_and(|ending| ending == DRAFT) {
        return Ok(None);
    }
    read(path)
}

/// Writes a record atomically.
pub(crate) fn write<T: Serialize>(path: &Path, record: &T) -> Result<(), Error> {
    let draft = path.with_extension(DRAFT);
    let bytes = serde_json::to_vec(record).map_err(|source| Error::io("encode", path, source.into()))?;
    std::fs::write(&draft, bytes).map_err(|source| Error::io("write", &draft, source))?;
    std::fs::rename(&draft, path).map_err(|source| Error::io("rename", &draft, source))
}

pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}
