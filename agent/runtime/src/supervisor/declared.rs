//! Directories that an image says its containers write to (`VOLUME`): each is there, and may be written to although the root may not.
//!
//! What is written there is the container's, as all else in its root file system, and goes with it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;

use super::{links, workplace};
use crate::Refusal;
use crate::sys::Mount;

/// There the kernel's file systems come over them.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Resolves the image's volumes to paths without links in a root in which nothing is mounted,
/// parents before children.
pub(crate) fn places(rootfs: &Path, wanted: &[PathBuf]) -> Result<Vec<PathBuf>, Refusal> {
    let mut places = BTreeSet::new();
    for path in wanted {
        let place = links::lead(rootfs, path).ok_or_else(|| Refusal::Failed {
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
    places.try_for_each(|place| workplace::make(rootfs, place, owner))
}

/// Returns a place's path as this process sees the root.
pub(crate) fn within(rootfs: &Path, place: &Path) -> PathBuf {
    rootfs.join(place.strip_prefix("/").unwrap_or(place))
}

/// Mounts each over itself, so that closing the root leaves it open.
pub(super) fn keep_open(rootfs: &Path, places: &[PathBuf]) -> io::Result<()> {
    for place in places {
        let place = within(rootfs, place);
        let copy = Mount::copy(&place)?;
        copy.propagate(libc::MS_PRIVATE)?;
        copy.attach(&place)?;
    }
    Ok(())
}
