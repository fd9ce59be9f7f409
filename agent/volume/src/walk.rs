//! Going through all files of a volume while others may change it: no link is followed, and nothing leads out.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Calls `change` for everything below `root`, and for the root last: while that is as it was, the work is not done.
pub(crate) fn all(root: &File, change: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let directory = match open(root, &path) {
            // It has gone meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.as_os_str().is_empty() => continue,
            opened => opened?,
        };
        if !metadata(&directory)?.is_dir() {
            change(&directory)?;
            continue;
        }
        for entry in fs::read_dir(by_number(&directory))? {
            waiting.push(path.join(entry?.file_name()));
        }
        if !path.as_os_str().is_empty() {
            change(&directory)?;
        }
    }
    change(&open(root, Path::new(""))?)
}

/// A path below the root, without following any link.
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

/// A path that leads to an open file and nowhere else.
pub(crate) fn by_number(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

pub(crate) fn metadata(file: &OwnedFd) -> io::Result<fs::Metadata> {
    File::from(file.try_clone()?).metadata()
}
