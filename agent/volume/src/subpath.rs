//! Parts of volumes. The container may have filled the volume with links, so a path is opened beneath it, and what was opened
//! is mounted: nobody can exchange it in between.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};

/// Binds `path` beneath `volume` to `target`, making directories that do not exist. A target that is mounted stays.
pub(crate) fn bind(volume: &Path, path: &str, target: &Path) -> io::Result<()> {
    let relative = Path::new(path);
    if relative
        .components()
        .any(|component| !matches!(component, Component::Normal(_) | Component::CurDir))
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it must be relative, without \"..\"",
        ));
    }
    if is_mounted(target)? {
        return Ok(());
    }
    let root = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits())
        .open(volume)?;
    let opened = open_or_make(&root, relative)?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    if fs::metadata(&source)?.is_dir() {
        fs::create_dir_all(target)?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        File::create(target)?;
    }
    mount(
        Some(&source),
        target,
        None::<&str>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&str>,
    )?;
    Ok(())
}

/// Whether something is mounted at this path. Paths of ours have no characters that the table escapes.
pub(crate) fn is_mounted(target: &Path) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|mounted| Path::new(mounted) == target))
}

fn beneath(root: &impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how)
}

fn open_or_make(root: &File, path: &Path) -> io::Result<OwnedFd> {
    match beneath(root, path) {
        Ok(opened) => return Ok(opened),
        Err(Errno::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut done = PathBuf::new();
    let mut current = beneath(root, Path::new("."))?;
    for component in path.components() {
        done.push(component);
        current = match beneath(root, &done) {
            Ok(opened) => opened,
            Err(Errno::ENOENT) => {
                mkdirat(
                    &current,
                    Path::new(component.as_os_str()),
                    Mode::from_bits_truncate(0o750),
                )?;
                beneath(root, &done)?
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(current)
}
