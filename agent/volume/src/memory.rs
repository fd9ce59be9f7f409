//! tmpfs that holds a pod's secrets.

use std::path::Path;

use nix::mount::{MsFlags, mount as mount_file_system};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::{Error, io_error, make_directory};

/// Size limit. A tmpfs uses memory only for its contents.
const OPTIONS: &str = "mode=0755,size=256m";

/// Mounts the tmpfs, unless it is mounted already.
pub(crate) fn mount(directory: &Path) -> Result<(), Error> {
    make_directory(directory)?;
    let parent = directory.parent().unwrap_or(directory);
    let device = |path: &Path| {
        let found = std::fs::metadata(path).map_err(|error| io_error("look at", path, error))?;
        Ok::<_, Error>(std::os::unix::fs::MetadataExt::dev(&found))
    };
    let kind = statfs(directory).map_err(|error| io_error("look at", directory, error))?;
    if kind.filesystem_type() == TMPFS_MAGIC && device(directory)? != device(parent)? {
        return Ok(());
    }
    // Secrets may hold programs, so no `noexec`; but `nosuid` and `nodev`.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_file_system(Some("tmpfs"), directory, Some("tmpfs"), flags, Some(OPTIONS))
        .map_err(|error| io_error("mount tmpfs at", directory, error))
}
