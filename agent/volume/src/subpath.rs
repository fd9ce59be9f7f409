//! Parts of volumes. The container may have filled the volume with links, so a path is opened beneath it, and what was opened
//! is mounted: nobody can exchange it in between.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fchmod, mkdirat};

/// How often a path is looked up when something else was renamed or mounted at just that moment.
const LOOKUPS: u32 = 1000;

/// Binds `path` beneath `volume` to `target`, making directories that do not exist, with the mode of the volume. What a former
/// start of the container bound there goes: the path may mean another file by now.
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
    clear(target)?;
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

/// Removes what is mounted at a path, and what it was mounted on.
fn clear(target: &Path) -> io::Result<()> {
    unmount(target)?;
    let removed = match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Unmounts everything at a path and below it, and nothing of it where it was bound from: a machine that shares its mounts, as
/// systemd makes it, would lose the file systems below a directory with the pod that was shown it.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    while is_mounted(target)? {
        let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?;
        umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    Ok(())
}

/// Whether something is mounted at this path.
pub(crate) fn is_mounted(target: &Path) -> io::Result<bool> {
    Ok(trees::mounts::parse(&trees::mounts::read()?).any(|mount| mount.point == target))
}

fn beneath(root: &impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..LOOKUPS {
        match openat2(root, path, how) {
            // Where a `..` leads the kernel does not say while anything moves, anywhere on the machine.
            Err(Errno::EAGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::EAGAIN)
}

/// Makes a directory whose mode no mask changes. It is opened for that without following a link: the container may have put
/// another one in its place.
fn make(parent: &OwnedFd, name: &Path, mode: Mode) -> Result<(), Errno> {
    mkdirat(parent, name, Mode::S_IRWXU)?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    fchmod(&openat2(parent, name, how)?, mode)
}

fn open_or_make(root: &File, path: &Path) -> io::Result<OwnedFd> {
    match beneath(root, path) {
        Ok(opened) => return Ok(opened),
        Err(Errno::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mode = Mode::from_bits_truncate(root.metadata()?.mode() & 0o7777);
    let mut done = PathBuf::new();
    let mut current = beneath(root, Path::new("."))?;
    for component in path.components() {
        done.push(component);
        current = match beneath(root, &done) {
            Ok(opened) => opened,
            Err(Errno::ENOENT) => {
                make(&current, Path::new(component.as_os_str()), mode)?;
                beneath(root, &done)?
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(current)
}
