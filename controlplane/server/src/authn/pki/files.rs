//! Files that only their owner may read.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

use super::PkiError;

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> PkiError {
    move |source| PkiError::File {
        path: path.to_owned(),
        source,
    }
}

/// Creates the directory; removes the access of other users to an existing one.
pub fn private_directory(path: &Path) -> Result<(), PkiError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed(path))?;
    close(path, 0o700)
}

/// Closes every key in the directory.
pub(super) fn close_keys(directory: &Path) -> Result<(), PkiError> {
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        if path.extension().is_some_and(|extension| extension == "key") {
            close_file(&path)?;
        }
    }
    Ok(())
}

/// True if the directory contains any certificate.
pub(super) fn any_certificate(directory: &Path) -> Result<bool, PkiError> {
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        if path.extension().is_some_and(|extension| extension == "crt") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the access of other users to a file.
pub(super) fn close_file(path: &Path) -> Result<(), PkiError> {
    close(path, 0o600)
}

fn close(path: &Path, mode: u32) -> Result<(), PkiError> {
    let found = fs::symlink_metadata(path).map_err(failed(path))?.permissions().mode() & 0o777;
    if found & !mode == 0 {
        return Ok(());
    }
    warn!(path = %path.display(), "was open to others with mode {found:o}; closed it. Consider replacing what it holds");
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed(path))
}

/// The text of a file, if it is there.
pub(super) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Replaces the file in one step, on disk when this returns.
pub(super) fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    let part = path.with_added_extension("part");
    let removed = fs::remove_file(&part);
    if let Err(error) = removed
        && error.kind() != ErrorKind::NotFound
    {
        return Err(failed(&part)(error));
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)
        .map_err(failed(&part))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed(&part))?;
    fs::rename(&part, path).map_err(failed(path))?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed(directory))
}
