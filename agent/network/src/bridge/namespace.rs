//! Network namespaces that are held by bind mounts, so that they live without a process.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, statfs};

use super::{names, users};
use crate::Error;

/// The file system of namespace files; from linux/magic.h.
const NSFS: FsType = FsType(0x6e73_6673);

/// Where the namespace of a sandbox is held.
pub(crate) fn path(state: &Path, sandbox: &str) -> PathBuf {
    state.join("netns").join(sandbox)
}

/// Moves the calling thread into a new namespace and holds that at `path`.
pub(crate) fn make(path: &Path, user_ids: Option<u32>) -> Result<(), Error> {
    hold(&enter(path, user_ids)?, path)
}

/// Moves the calling thread into a new namespace, which is gone when nobody is in it and nobody has this file or a socket of it
/// any more. It belongs to users of its own where the first of their ids is given. `path` is what it is for.
pub(crate) fn enter(path: &Path, user_ids: Option<u32>) -> Result<File, Error> {
    if let Some(first) = user_ids {
        let made = users::network(first).map_err(|source| Error::io("make users and a namespace for", path, source))?;
        setns(made.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|source| Error::io("enter the namespace of", path, source.into()))?;
        return Ok(made);
    }
    unshare(CloneFlags::CLONE_NEWNET).map_err(|source| Error::io("make a namespace for", path, source.into()))?;
    let own = Path::new("/proc/thread-self/ns/net");
    File::open(own).map_err(|source| Error::io("open", own, source))
}

/// Moves the calling thread into the namespace that somebody holds at `path`.
pub(crate) fn join(path: &Path) -> Result<File, Error> {
    let namespace = File::open(path).map_err(|source| Error::io("open", path, source))?;
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)
        .map_err(|source| Error::io("enter the namespace of", path, source.into()))?;
    Ok(namespace)
}

/// Holds a namespace at `path`, whoever is in it.
pub(crate) fn hold(namespace: &File, path: &Path) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| Error::io("create", folder, source))?;
    }
    File::create(path).map_err(|source| Error::io("create", path, source))?;
    let own = PathBuf::from(format!("/proc/self/fd/{}", namespace.as_raw_fd()));
    mount(Some(&own), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|source| Error::io("hold a namespace at", path, source.into()))?;
    failpoint::reach("namespace held");
    Ok(())
}

/// Whether a namespace is held at `path`.
pub(crate) fn is_held(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS)
}

/// Lets go of a namespace. Success when none is held.
pub(crate) fn release(path: &Path) -> Result<(), Error> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            // Mounted once more below? A crash between two attempts may have left that.
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(source) => return Err(Error::io("unmount", path, source.into())),
        }
    }
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lets go of every namespace below the state folder.
pub(crate) fn release_all(state: &Path) -> Result<(), Error> {
    for folder in [state.join("netns"), names::slots(state)] {
        release_but(&folder, |_name| false)?;
        match std::fs::remove_dir(&folder) {
            Err(source) if source.kind() != ErrorKind::NotFound => return Err(Error::io("remove", &folder, source)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Lets go of every namespace below the state folder that is not the known one of a sandbox. Goes on past failures.
pub(crate) fn release_others(state: &Path, known: impl Fn(&str) -> bool) -> Result<(), Error> {
    release_but(&state.join("netns"), known)
}

/// Lets go of every namespace that is held in a folder, but for some. Goes on past failures.
pub(super) fn release_but(folder: &Path, known: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut failures = Vec::new();
    for name in files(folder)? {
        if !name.to_str().is_some_and(&known) {
            super::note(&mut failures, release(&folder.join(name)));
        }
    }
    super::finish(failures)
}

/// The files of a folder; none where there is no folder.
pub(super) fn files(folder: &Path) -> Result<Vec<OsString>, Error> {
    let failed = |source| Error::io("read", folder, source);
    match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.file_name()).map_err(failed))
            .collect(),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(failed(source)),
    }
}

/// Has a namespace that is held at one path held at another one, too.
pub(super) fn hold_too(from: &Path, to: &Path) -> Result<(), Error> {
    let namespace = File::open(from).map_err(|source| Error::io("open", from, source))?;
    release(to)?;
    hold(&namespace, to)
}
