//! Volumes of an image (`VOLUME`): each directory exists, and is writable even if the root is
//! read-only.
//!
//! Their contents belong to the container, like the rest of its root file system, and are removed
//! with it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;

use super::{cwd, symlinks};
use crate::Refusal;
use crate::sys::Mount;

/// Directories that the kernel's file systems cover.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Resolves the image's volumes to paths without links in a root in which nothing is mounted,
/// parents before children.
pub(crate) fn places(rootfs: &Path, wanted: &[PathBuf]) -> Result<Vec<PathBuf>, Refusal> {
    let mut places = BTreeSet::new();
    for path in wanted {
        let place = symlinks::lead(rootfs, path).ok_or_else(|| Refusal::Failed {
            doing: format!("make volume {}", path.display()),
            cause: "too many links".to_owned(),
        })?;
        let kernels = KERNEL.iter().any(|kernel| place.starts_with(kernel));
        if !kernels && place != Path::new("/") {
            places.insert(place);
        }
    }
    Ok(places.into_iter().collect())
}

/// Makes the missing ones in a root that no other process uses yet, owned by `owner` or root.
pub(crate) fn make(rootfs: &Path, places: &[PathBuf], owner: Option<u32>) -> Result<(), Refusal> {
    let mut places = places.iter();
    places.try_for_each(|place| cwd::make(rootfs, place, owner))
}

/// Returns a place's path as this process sees the root.
pub(crate) fn within(rootfs: &Path, place: &Path) -> PathBuf {
    rootfs.join(place.strip_prefix("/").unwrap_or(place))
}

/// Bind-mounts each over itself, so that a read-only root leaves it writable.
pub(in crate::supervisor) fn keep_open(rootfs: &Path, places: &[PathBuf]) -> io::Result<()> {
    for place in places {
        let place = within(rootfs, place);
        let copy = Mount::copy(&place)?;
        copy.propagate(libc::MS_PRIVATE)?;
        copy.attach(&place)?;
    }
    Ok(())
}
