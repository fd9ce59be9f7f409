//! Operations confined by the kernel below a directory descriptor, and the validation of paths that
//! precedes them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self as unix, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{Entry, UnpackError, shown};

/// Flags of `openat2`: beneath the descriptor, without links of any kind, on the same file system.
pub(super) const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
pub(super) const PATH_LIMIT: usize = 4096;
const COMPONENT_LIMIT: usize = 255;
/// Maximum number of links on the way to a member, as in containerd (`continuity/fs/path.go`).
const LINK_LIMIT: usize = 255;
const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";

/// Splits a path into its components and refuses invalid ones.
pub(super) fn clean(path: &[u8], depth: usize) -> Result<Vec<&[u8]>, UnpackError> {
    let refuse = |problem| {
        Err(UnpackError::Path {
            path: shown(path),
            problem,
        })
    };
    if path.len() > PATH_LIMIT {
        return refuse("the name is longer than 4096 bytes");
    }
    if path.contains(&0) {
        return refuse("the name has a NUL byte");
    }
    // A leading slash means the root of the layer, as in other unpackers.
    let components: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .collect();
    if components.contains(&b"..".as_slice()) {
        return refuse("the name has a \"..\" component");
    }
    if components.iter().any(|part| part.len() > COMPONENT_LIMIT) {
        return refuse("a component of the name is longer than 255 bytes");
    }
    if components.len() > depth {
        return Err(too_deep(depth));
    }
    Ok(components)
}

fn too_deep(depth: usize) -> UnpackError {
    UnpackError::Limit {
        limit: depth as u64,
        unit: "directories in each other",
    }
}

pub(super) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    unix::openat2(
        root,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        CONFINED,
    )
}

/// Resolves the links of a directory's path: absolute ones begin at the root, and `..` does not lead
/// out of it. Components that do not exist are kept. The result has no links, so it can be opened.
pub(super) fn follow(
    root: BorrowedFd<'_>,
    directory: &[u8],
    depth: usize,
    entry: &[u8],
) -> Result<Vec<u8>, UnpackError> {
    let reversed = |path: &[u8]| -> Vec<Vec<u8>> { path.rsplit(|byte| *byte == b'/').map(<[u8]>::to_vec).collect() };
    let (mut left, mut found, mut links) = (reversed(directory), Vec::<Vec<u8>>::new(), 0);
    while let Some(component) = left.pop() {
        if matches!(component.as_slice(), b"" | b".") {
            continue;
        }
        if component == b".." {
            found.pop();
            continue;
        }
        found.push(component);
        let target = read_link(root, &found.join(&b'/')).map_err(failed("follow the links of", entry))?;
        let Some(target) = target else {
            // The member itself is one component more.
            if found.len() >= depth {
                return Err(too_deep(depth));
            }
            continue;
        };
        links += 1;
        if links > LINK_LIMIT {
            return Err(UnpackError::Path {
                path: shown(entry),
                problem: "its way leads through too many symbolic links",
            });
        }
        found.pop();
        if target.starts_with(b"/") {
            found.clear();
        }
        left.extend(reversed(&target));
    }
    Ok(found.join(&b'/'))
}

/// Target of the symbolic link at a path whose other components are no links; `None` for anything
/// else.
fn read_link(root: BorrowedFd<'_>, path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = unix::openat2(root, path, flags, Mode::empty(), CONFINED);
    // `ENOENT` is also what the kernel says of other files where the path is empty.
    match opened.and_then(|link| unix::readlinkat(&link, "", Vec::<u8>::new())) {
        Ok(target) => Ok(Some(target.into_bytes())),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn stat(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<unix::Stat>, Errno> {
    match unix::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn is_whiteout(found: &unix::Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
}

pub(super) fn set_opaque(directory: BorrowedFd<'_>, entry: &[u8]) -> Result<(), UnpackError> {
    unix::fsetxattr(directory, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty()).map_err(failed("make opaque", entry))
}

/// Owner first: `chown` clears set-id bits and capabilities.
pub(super) fn describe(file: BorrowedFd<'_>, entry: &Entry) -> Result<(), UnpackError> {
    unix::fchown(file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))
        .map_err(failed("set the owner of", &entry.path))?;
    unix::fchmod(file, Mode::from_raw_mode(entry.mode)).map_err(failed("set the mode of", &entry.path))?;
    for (name, value) in &entry.attributes {
        // `trusted.*` controls overlayfs; `security.*` other than capabilities controls the host's
        // own policy.
        let plain = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        if !plain && name != b"security.capability" {
            continue;
        }
        match unix::fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) if plain => {}
            Err(error) => return Err(failed("set an extended attribute of", &entry.path)(error)),
        }
    }
    Ok(())
}

/// Removes a directory that this unpacker created: its depth is limited.
pub(super) fn remove_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let directory = open_directory(parent, name)?;
    for member in unix::Dir::read_from(&directory)? {
        let member = member?;
        let member = member.file_name().to_bytes();
        if matches!(member, b"." | b"..") {
            continue;
        }
        match unix::unlinkat(&directory, member, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::ISDIR) => remove_directory(directory.as_fd(), member)?,
            Err(error) => return Err(error),
        }
    }
    unix::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

pub(super) fn timestamps((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: i64::from(nanoseconds),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

pub(super) fn failed(operation: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> UnpackError {
    move |error| UnpackError::Io {
        operation,
        path: shown(path),
        source: error.into(),
    }
}

pub(super) fn parent_error(entry: &[u8], error: Errno) -> UnpackError {
    match error {
        Errno::NOTDIR => UnpackError::Path {
            path: shown(entry),
            problem: "its way leads through something that is no directory",
        },
        Errno::NOENT => UnpackError::Path {
            path: shown(entry),
            problem: "its directory is not in the layer",
        },
        Errno::XDEV => UnpackError::Path {
            path: shown(entry),
            problem: "it leads out of the layer",
        },
        other => failed("open the directory of", entry)(other),
    }
}

/// See [`super::inherit`].
pub(super) fn inherit(target: &Path, implicit: &[PathBuf], lower: &[PathBuf]) -> Result<(), UnpackError> {
    let open = |path: &Path| {
        unix::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed("open", path.as_os_str().as_bytes()))
    };
    let root = open(target)?;
    let lower = lower
        .iter()
        .rev()
        .map(|path| open(path))
        .collect::<Result<Vec<_>, _>>()?;
    for path in implicit {
        let bytes = path.as_os_str().as_bytes();
        let Some(model) = lower.iter().find_map(|layer| open_directory(layer.as_fd(), bytes).ok()) else {
            continue;
        };
        let Ok(directory) = open_directory(root.as_fd(), bytes) else {
            continue;
        };
        let found = unix::fstat(&model).map_err(failed("look up", bytes))?;
        unix::fchown(
            &directory,
            Some(Uid::from_raw(found.st_uid)),
            Some(Gid::from_raw(found.st_gid)),
        )
        .map_err(failed("set the owner of", bytes))?;
        unix::fchmod(&directory, Mode::from_raw_mode(found.st_mode & 0o7777))
            .map_err(failed("set the mode of", bytes))?;
        let modified = (found.st_mtime, u32::try_from(found.st_mtime_nsec).unwrap_or(0));
        unix::futimens(&directory, &timestamps(modified)).map_err(failed("set the times of", bytes))?;
    }
    Ok(())
}
