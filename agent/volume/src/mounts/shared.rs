//! Directory below which containers make mounts for the node, as storage drivers do.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::mount::{MsFlags, mount};

use crate::subpath;

/// Lock for the look at the mount table and the mount.
static SHARING: Mutex<()> = Mutex::new(());

/// Makes a directory a shared mount unless it is on one: mounts that a container makes below it with
/// `mountPropagation: Bidirectional` are then seen by the node and by other containers.
pub fn share(directory: &Path) -> io::Result<()> {
    let _sharing = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory.canonicalize()?;
    let table = trees::mounts::read()?;
    let above = trees::mounts::parse(&table).filter(|mount| directory.starts_with(&mount.point));
    // Of mounts at the same path, the last one is on top.
    let above = above.max_by_key(|mount| mount.point.as_os_str().len());
    if above.as_ref().is_some_and(|above| above.shared) {
        return Ok(());
    }
    let none = None::<&str>;
    if above.is_none_or(|above| above.point != directory) {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&directory), &directory, none, bind, none)?;
    }
    Ok(mount(
        none,
        &directory,
        none,
        MsFlags::MS_SHARED | MsFlags::MS_REC,
        none,
    )?)
}

/// Unmounts everything below the directory, and its own bind mount; the files of what was mounted
/// stay, and so does a file system that somebody else mounted at the directory.
pub fn unshare(directory: &Path) -> io::Result<()> {
    let Ok(directory) = directory.canonicalize() else {
        return Ok(());
    };
    let table = trees::mounts::read()?;
    let mut below: Vec<_> = trees::mounts::parse(&table)
        .filter(|mount| mount.point != directory || mount.root != Path::new("/"))
        .map(|mount| mount.point)
        .filter(|point| point.starts_with(&directory))
        .collect();
    below.sort();
    below.iter().rev().try_for_each(|point| subpath::unmount(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_shared_once_and_given_back() {
        let home = tempfile::tempdir().expect("a directory");
        let none = None::<&str>;
        mount(Some("tmpfs"), home.path(), Some("tmpfs"), MsFlags::empty(), none).expect("mounted");
        mount(none, home.path(), none, MsFlags::MS_PRIVATE, none).expect("private");
        let directory = home.path().join("kubelet");
        std::fs::create_dir(&directory).expect("made");
        let count = || {
            let table = trees::mounts::read().expect("read");
            trees::mounts::parse(&table)
                .filter(|mount| mount.point.starts_with(&directory))
                .count()
        };
        share(&directory).expect("shared");
        share(&directory).expect("shared already");
        std::fs::create_dir(directory.join("below")).expect("made");
        let below = directory.join("below");
        mount(Some("tmpfs"), &below, Some("tmpfs"), MsFlags::empty(), none).expect("mounted");
        assert_eq!(count(), 2);
        unshare(&directory).expect("given back");
        let left = count();
        subpath::unmount(home.path()).expect("unmounted");
        assert_eq!(left, 0);
    }
}
