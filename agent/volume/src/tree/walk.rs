//! Walks all files of a volume while others may change it: no link is followed, and the walk never
//! leaves the volume.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Calls `change` for everything below `root`, and for the root last: an unchanged root means that
/// the work is incomplete.
pub(crate) fn all(root: &File, change: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
    let top = open(root, Path::new(""))?;
    // Stack of open directories: bounded by the length of a path, not by the number of entries.
    let mut opened = Vec::new();
    if metadata(&top)?.is_dir() {
        opened.push((PathBuf::new(), fs::read_dir(by_number(&top))?));
    }
    while let Some((directory, entries)) = opened.last_mut() {
        let Some(entry) = entries.next() else {
            opened.pop();
            continue;
        };
        let path = directory.join(entry?.file_name());
        let file = match open(root, &path) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        change(&file)?;
        if metadata(&file)?.is_dir() {
            opened.push((path, fs::read_dir(by_number(&file))?));
        }
    }
    change(&top)
}

/// Opens a path below the root, without following any link.
fn open(root: &File, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    if path == Path::new(".") && !root.metadata()?.is_dir() {
        return Ok(root.try_clone()?.into());
    }
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(root, path, how)?)
}

/// Path of an open file in `/proc/self/fd`.
pub(crate) fn by_number(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

pub(crate) fn metadata(file: &OwnedFd) -> io::Result<fs::Metadata> {
    File::from(file.try_clone()?).metadata()
}
