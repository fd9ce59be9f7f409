//! Network namespaces kept by bind mounts, so that they exist without a process.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, statfs};

use super::users;
use crate::Error;
use crate::bridge::{finish, names, note};

/// Magic number of nsfs, from `linux/magic.h`.
const NSFS: FsType = FsType(0x6e73_6673);

/// Path at which the namespace of a sandbox is mounted.
pub(crate) fn path(state: &Path, sandbox: &str) -> PathBuf {
    state.join("netns").join(sandbox)
}

/// Moves the calling thread into a new namespace and mounts that at `path`.
pub(crate) fn make(path: &Path, user_ids: Option<u32>) -> Result<(), Error> {
    hold(&enter(path, user_ids)?, path)
}

/// Moves the calling thread into a new namespace, which exists while a process, this file or one of
/// its sockets refers to it. It is owned by a new user namespace if the first host user ID of that
/// is given. `path` is used in errors only.
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

/// Moves the calling thread into the namespace mounted at `path`.
pub(crate) fn join(path: &Path) -> Result<File, Error> {
    let namespace = File::open(path).map_err(|source| Error::io("open", path, source))?;
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)
        .map_err(|source| Error::io("enter the namespace of", path, source.into()))?;
    Ok(namespace)
}

/// Bind-mounts a namespace at `path`.
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

/// True if a namespace is mounted at `path`.
pub(crate) fn is_held(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS)
}

/// Unmounts a namespace. Succeeds if none is mounted.
pub(crate) fn release(path: &Path) -> Result<(), Error> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            // A crash between two attempts may have left several mounts on top of one another.
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

/// Unmounts every namespace below the state folder.
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

/// Unmounts every namespace below the state folder that does not belong to a known sandbox.
/// Continues past errors.
pub(crate) fn release_others(state: &Path, known: impl Fn(&str) -> bool) -> Result<(), Error> {
    release_but(&state.join("netns"), known)
}

/// Unmounts every namespace in a directory, except for some. Continues past errors.
pub(in crate::bridge) fn release_but(folder: &Path, known: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut failures = Vec::new();
    for name in files(folder)? {
        if !name.to_str().is_some_and(&known) {
            note(&mut failures, release(&folder.join(name)));
        }
    }
    finish(failures)
}

/// Files of a directory; empty if it does not exist.
pub(in crate::bridge) fn files(folder: &Path) -> Result<Vec<OsString>, Error> {
    let failed = |source| Error::io("read", folder, source);
    match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.file_name()).map_err(failed))
            .collect(),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(failed(source)),
    }
}

/// Bind-mounts a namespace at a second path.
pub(in crate::bridge) fn hold_too(from: &Path, to: &Path) -> Result<(), Error> {
    let namespace = File::open(from).map_err(|source| Error::io("open", from, source))?;
    release(to)?;
    hold(&namespace, to)
}
