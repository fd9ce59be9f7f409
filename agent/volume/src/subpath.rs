//! `subPath` mounts. The container may have filled the volume with links, so a path is opened
//! beneath the volume and the opened file is mounted: it cannot be replaced in between.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fchmod, mkdirat};

/// Maximum number of lookups of a path that races with renames or mounts (`EAGAIN`).
const LOOKUPS: u32 = 1000;

/// Bind-mounts `path` beneath `volume` to `target`, creating missing directories with the mode of
/// the volume. The mount of an earlier start of the container is removed: the path may be another
/// file by now.
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

/// Unmounts everything at a path and removes the mount point.
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

/// Unmounts everything at and below a path without propagation to the source of a bind mount: with
/// shared mounts, the default of systemd, the pod's unmount would otherwise unmount file systems
/// below the source directory, too.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    loop {
        match mount(None::<&str>, target, None::<&str>, flags, None::<&str>) {
            Ok(()) => umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?,
            // EINVAL: it is no mount point.
            Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// True if something is mounted at this path, which may lead through links. What is mounted is not
/// accessed: it may hang.
pub fn is_mounted(target: &Path) -> io::Result<bool> {
    let real = match target.parent().map(Path::canonicalize) {
        Some(Ok(parent)) => parent.join(target.file_name().unwrap_or_default()),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Some(Err(error)) => return Err(error),
        None => target.to_owned(),
    };
    Ok(trees::mounts::parse(&trees::mounts::read()?).any(|mount| mount.point == real))
}

fn beneath(root: &impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..LOOKUPS {
        match openat2(root, path, how) {
            // `openat2` cannot resolve `..` safely while a rename or mount runs anywhere on the
            // machine.
            Err(Errno::EAGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::EAGAIN)
}

/// Creates a directory with this mode, regardless of the umask. It is opened for `fchmod` without
/// following a link: the container may have replaced it.
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
