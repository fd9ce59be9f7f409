//! Directory of one layer, accessed through file descriptors only.
//!
//! Directories are opened by `openat2` below the root with symbolic links refused: links on the way
//! to a member are resolved first ([`follow`]). The last component is created or removed relative to
//! its parent's descriptor by calls that do not follow links. No absolute path is used.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{self as unix, AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::confined::{
    CONFINED, PATH_LIMIT, clean, describe, failed, follow, is_whiteout, open_directory, parent_error, remove_directory,
    set_opaque, stat, timestamps,
};
use super::{Entry, EntryKind, Limits, UnpackError, read_error, shown};

const WHITEOUT: &[u8] = b".wh.";
/// Mode of implied directories, independent of the umask.
const UNTOLD: Mode = Mode::from_bits_retain(0o755);
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Directory of a layer that is being unpacked.
pub(super) struct Root {
    base: OwnedFd,
    depth: usize,
    /// Parent of the last entry, cached: archives list a directory's members one after the other. Its
    /// path is free of links, as are all that are remembered.
    parent: Option<(Vec<u8>, OwnedFd)>,
    implicit: BTreeSet<Vec<u8>>,
    /// Times of directories, set at the end, when nothing more is created in them.
    times: BTreeMap<Vec<u8>, (i64, u32)>,
    /// Bytes used by the remembered paths, and their limit.
    remembered: u64,
    limit: u64,
    skipped_devices: u64,
}

impl Root {
    pub(super) fn open(path: &Path, limits: &Limits) -> io::Result<Self> {
        let base = unix::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        unix::fchmod(&base, UNTOLD)?;
        Ok(Self {
            base,
            depth: limits.depth,
            parent: None,
            implicit: BTreeSet::new(),
            times: BTreeMap::new(),
            remembered: 0,
            limit: limits.directory_bytes,
            skipped_devices: 0,
        })
    }

    /// Creates one member, replacing an earlier member of the same path.
    pub(super) fn apply(&mut self, entry: &Entry, data: &mut dyn Read) -> Result<(), UnpackError> {
        let components = clean(&entry.path, self.depth)?;
        let Some((name, directory)) = components.split_last() else {
            return self.describe_root(entry);
        };
        let directory = directory.join(&b'/');
        self.enter(&directory, &entry.path)?;
        let parent = self.parent.as_ref().map_or(&[][..], |(path, _)| path.as_slice());
        let path = if parent.is_empty() {
            name.to_vec()
        } else {
            [parent, name].join(&b'/')
        };
        if name.starts_with(WHITEOUT) {
            return self.white_out(name, &entry.path);
        }
        self.implicit.remove(&path);
        match entry.kind {
            EntryKind::Directory => self.directory(entry, &path, name),
            EntryKind::File => self.file(entry, name, data),
            EntryKind::Symlink => self.symlink(entry, name),
            EntryKind::Hardlink => self.hard_link(entry, name),
            EntryKind::Fifo => self.fifo(entry, name),
            EntryKind::Device => {
                // Containers get their devices from the runtime: a device node of an image would
                // bypass the device policy, and one numbered 0/0 would be a whiteout.
                self.skipped_devices += 1;
                Ok(())
            }
            EntryKind::Other => Err(UnpackError::Unsupported {
                path: shown(&entry.path),
                what: "this kind of member",
            }),
        }
    }

    /// Sets the directories' times. Returns the implied directories.
    pub(super) fn finish(self) -> Result<Vec<PathBuf>, UnpackError> {
        for (path, modified) in self.times.iter().rev() {
            match open_directory(self.base.as_fd(), path) {
                Ok(directory) => {
                    unix::futimens(&directory, &timestamps(*modified)).map_err(failed("set the times of", path))?;
                }
                // Replaced by a later member.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(failed("open", path)(error)),
            }
        }
        if self.skipped_devices > 0 {
            tracing::warn!(count = self.skipped_devices, "left out device nodes of an image layer");
        }
        Ok(self
            .implicit
            .into_iter()
            .map(|path| PathBuf::from(OsStr::from_bytes(&path)))
            .collect())
    }

    /// Opens `directory` as the current parent, creating missing components.
    fn enter(&mut self, directory: &[u8], entry: &[u8]) -> Result<(), UnpackError> {
        if self.parent.as_ref().is_some_and(|(path, _)| path == directory) {
            return Ok(());
        }
        let (path, opened) = self.find(directory, entry)?;
        let opened = match opened {
            Some(opened) => opened,
            None => self.create_parents(&path, entry)?,
        };
        self.parent = Some((path, opened));
        Ok(())
    }

    /// Opens a directory if it exists. Also returns its path without links: those of this layer are
    /// followed, as in containerd (`pkg/archive/tar.go`, `applyNaive`).
    fn find(&self, directory: &[u8], entry: &[u8]) -> Result<(Vec<u8>, Option<OwnedFd>), UnpackError> {
        let base = self.base.as_fd();
        let (mut path, mut opened) = (directory.to_vec(), open_directory(base, directory));
        if matches!(opened, Err(Errno::LOOP)) {
            path = follow(base, directory, self.depth, entry)?;
            opened = open_directory(base, &path);
        }
        match opened {
            Ok(opened) => Ok((path, Some(opened))),
            Err(Errno::NOENT) => Ok((path, None)),
            Err(error) => Err(parent_error(entry, error)),
        }
    }

    fn create_parents(&mut self, directory: &[u8], entry: &[u8]) -> Result<OwnedFd, UnpackError> {
        let mut path: Vec<u8> = Vec::with_capacity(directory.len());
        for component in directory.split(|byte| *byte == b'/') {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
            let parent = path
                .len()
                .checked_sub(component.len() + 1)
                .and_then(|end| path.get(..end))
                .unwrap_or_default();
            let parent = open_directory(self.base.as_fd(), parent).map_err(|error| parent_error(entry, error))?;
            match unix::mkdirat(&parent, component, UNTOLD) {
                Ok(()) => {
                    unix::chmodat(&parent, component, UNTOLD, AtFlags::empty())
                        .map_err(failed("set the mode of the parent of", entry))?;
                    self.take(path.len())?;
                    self.implicit.insert(path.clone());
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("create the parent of", entry)(error)),
            }
        }
        open_directory(self.base.as_fd(), directory).map_err(|error| parent_error(entry, error))
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.parent
            .as_ref()
            .map_or(self.base.as_fd(), |(_, parent)| parent.as_fd())
    }

    fn describe_root(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        if entry.kind != EntryKind::Directory {
            return Err(UnpackError::Path {
                path: shown(&entry.path),
                problem: "the root of a layer must be a directory",
            });
        }
        describe(self.base.as_fd(), entry)?;
        self.times.insert(Vec::new(), entry.modified);
        Ok(())
    }

    fn directory(&mut self, entry: &Entry, path: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        let found = stat(self.current(), name).map_err(failed("look up", &entry.path))?;
        let opaque = found.as_ref().is_some_and(is_whiteout);
        if !found.is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory) {
            self.replace(entry, name)?;
            unix::mkdirat(self.current(), name, Mode::from_raw_mode(0o700)).map_err(failed("create", &entry.path))?;
        }
        let directory = open_directory(self.current(), name).map_err(failed("open", &entry.path))?;
        if opaque {
            set_opaque(directory.as_fd(), &entry.path)?;
        }
        describe(directory.as_fd(), entry)?;
        if let Some(time) = self.times.get_mut(path) {
            *time = entry.modified;
        } else {
            self.take(path.len())?;
            self.times.insert(path.to_vec(), entry.modified);
        }
        Ok(())
    }

    /// Counts a path that is to be remembered.
    fn take(&mut self, bytes: usize) -> Result<(), UnpackError> {
        self.remembered = self.remembered.saturating_add(bytes as u64);
        if self.remembered > self.limit {
            return Err(UnpackError::Limit {
                limit: self.limit,
                unit: "bytes in the paths of directories",
            });
        }
        Ok(())
    }

    fn file(&mut self, entry: &Entry, name: &[u8], data: &mut dyn Read) -> Result<(), UnpackError> {
        self.replace(entry, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = unix::openat2(self.current(), name, flags, Mode::from_raw_mode(0o600), CONFINED)
            .map_err(failed("create", &entry.path))?;
        let mut file = std::fs::File::from(file);
        copy(data, &mut file, entry)?;
        describe(file.as_fd(), entry)?;
        unix::futimens(&file, &timestamps(entry.modified)).map_err(failed("set the times of", &entry.path))
    }

    fn symlink(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        if entry.link.is_empty() || entry.link.len() >= PATH_LIMIT || entry.link.contains(&0) {
            return Err(UnpackError::Path {
                path: shown(&entry.path),
                problem: "its target is not a path",
            });
        }
        self.replace(entry, name)?;
        unix::symlinkat(entry.link.as_slice(), self.current(), name).map_err(failed("create", &entry.path))?;
        self.own(entry, name)
    }

    fn hard_link(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        let components = clean(&entry.link, self.depth)?;
        let Some((target, directory)) = components.split_last() else {
            return Err(UnpackError::Path {
                path: shown(&entry.path),
                problem: "it links to the root of the layer",
            });
        };
        let (_, directory) = self.find(&directory.join(&b'/'), &entry.link)?;
        let directory = directory.ok_or_else(|| parent_error(&entry.link, Errno::NOENT))?;
        let found = stat(directory.as_fd(), target).map_err(failed("look up", &entry.link))?;
        let current = unix::fstat(self.current()).map_err(failed("look up", &entry.path))?;
        let parent = unix::fstat(&directory).map_err(failed("look up", &entry.link))?;
        if *target == name && (current.st_dev, current.st_ino) == (parent.st_dev, parent.st_ino) {
            return Err(UnpackError::Path {
                path: shown(&entry.path),
                problem: "it links to itself",
            });
        }
        match found {
            Some(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory || is_whiteout(&found) => {
                return Err(UnpackError::Path {
                    path: shown(&entry.path),
                    problem: "it links to something that is no file",
                });
            }
            Some(_) => {}
            None => {
                return Err(UnpackError::Path {
                    path: shown(&entry.path),
                    problem: "it links to a file that is not in the layer",
                });
            }
        }
        self.replace(entry, name)?;
        unix::linkat(&directory, *target, self.current(), name, AtFlags::empty()).map_err(failed("link", &entry.path))
    }

    fn fifo(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        self.replace(entry, name)?;
        let mode = Mode::from_raw_mode(entry.mode);
        unix::mknodat(self.current(), name, FileType::Fifo, mode, 0).map_err(failed("create", &entry.path))?;
        self.own(entry, name)?;
        // After the umask was applied and `chown` has cleared bits.
        unix::chmodat(self.current(), name, mode, AtFlags::empty()).map_err(failed("set the mode of", &entry.path))
    }

    /// Sets owner and times of a file that cannot be opened.
    fn own(&self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        unix::chownat(self.current(), name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set the owner of", &entry.path))?;
        unix::utimensat(
            self.current(),
            name,
            &timestamps(entry.modified),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(failed("set the times of", &entry.path))
    }

    /// Applies a whiteout: `.wh.NAME` hides NAME in the layers below; `.wh..wh..opq` makes the
    /// directory opaque.
    fn white_out(&mut self, name: &[u8], entry: &[u8]) -> Result<(), UnpackError> {
        if name == OPAQUE {
            return set_opaque(self.current(), entry);
        }
        let hidden = name.strip_prefix(WHITEOUT).unwrap_or_default();
        if hidden.starts_with(WHITEOUT) {
            // Metadata of AUFS.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(UnpackError::Path {
                path: shown(entry),
                problem: "a whiteout must name a file",
            });
        }
        match unix::mknodat(self.current(), hidden, FileType::CharacterDevice, Mode::empty(), 0) {
            // The layer's own entry stays: a whiteout applies to the layers below.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed("create the whiteout", entry)(error)),
        }
    }

    /// Removes an earlier member of the same name.
    fn replace(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        match unix::unlinkat(self.current(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(failed("replace", &entry.path)(error)),
        }
        remove_directory(self.current(), name).map_err(failed("replace", &entry.path))
    }
}

fn copy(data: &mut dyn Read, file: &mut std::fs::File, entry: &Entry) -> Result<(), UnpackError> {
    let mut buffer = vec![0_u8; usize::try_from(entry.size.min(128 << 10)).unwrap_or(0)];
    let mut left = entry.size;
    while left > 0 {
        let read = data.read(&mut buffer).map_err(read_error)?;
        if read == 0 {
            return Err(UnpackError::Archive(io::ErrorKind::UnexpectedEof.into()));
        }
        file.write_all(buffer.get(..read).unwrap_or_default())
            .map_err(|source| UnpackError::Io {
                operation: "write",
                path: shown(&entry.path),
                source,
            })?;
        left = left.saturating_sub(read as u64);
    }
    Ok(())
}
