//! Files that every runtime keeps: its state directory, root file systems and their labels,
//! records, and directories made ahead.

pub(crate) mod label;
pub(crate) mod opened;
pub(crate) mod overlay;
pub(crate) mod record;
pub(crate) mod spares;
pub(crate) mod spread;

use std::path::Path;

/// Removes a directory with its contents; notes a failure.
pub(crate) fn remove_directory(directory: &Path, failures: &mut Vec<String>) {
    if let Err(error) = trees::remove(directory) {
        failures.push(format!("remove {}: {error}", directory.display()));
    }
}
