//! Files that are updated atomically: `NAME -> ..data/NAME`, `..data -> ..SOMETHING`, which is
//! replaced by one rename.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use nix::unistd::{Gid, Uid, chown};

use super::Payload;
use crate::{Error, io_error, make_directory, set_mode};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// Updates the volume to exactly this payload; does nothing if it has it already.
pub(crate) fn write(target: &Path, payload: &Payload, group: Option<Gid>) -> Result<(), Error> {
    let current = target.join(DATA);
    if current.exists() && holds(&current, payload) {
        // A killed agent may have left the links incomplete.
        link_names(target, payload)?;
        return sweep(target, &current);
    }
    let fresh = tempfile::Builder::new()
        .prefix("..")
        .tempdir_in(target)
        .map_err(|error| io_error("create a directory in", target, error))?;
    set_mode(fresh.path(), 0o755)?;
    for (path, file) in payload {
        let full = fresh.path().join(path);
        make_directories(fresh.path(), Path::new(path), group)?;
        fs::write(&full, &file.contents).map_err(|error| io_error("write", &full, error))?;
        let mut mode = file.mode;
        if let Some(owner) = file.owner {
            chown(&full, Some(Uid::from_raw(owner)), None).map_err(|error| io_error("chown", &full, error))?;
        }
        if group.is_some() {
            chown(&full, None, group).map_err(|error| io_error("chown", &full, error))?;
            mode |= 0o440;
        }
        set_mode(&full, mode)?;
    }
    let fresh = fresh.keep();
    publish(target, &fresh, &current)?;
    link_names(target, payload)?;
    sweep(target, &current)
}

/// Removes all versions but the current one: the previous one, and unfinished ones of a killed
/// agent.
fn sweep(target: &Path, current: &Path) -> Result<(), Error> {
    let kept = fs::read_link(current).map_err(|error| io_error("read", current, error))?;
    let entries = fs::read_dir(target).map_err(|error| io_error("read", target, error))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let version = name.to_str().is_some_and(|name| name.starts_with(".."));
        if version && name != kept.as_os_str() && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            trees::remove(&entry.path()).map_err(|error| io_error("remove", &entry.path(), error))?;
        }
    }
    Ok(())
}

/// Creates the parent directories of a file, with search permission for all regardless of the
/// umask.
fn make_directories(root: &Path, file: &Path, group: Option<Gid>) -> Result<(), Error> {
    let mut above: Vec<&Path> = file
        .ancestors()
        .skip(1)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    above.reverse();
    for path in above {
        let full = root.join(path);
        make_directory(&full)?;
        chown(&full, None, group).map_err(|error| io_error("chown", &full, error))?;
        // Set-group-ID: new files in these directories get the directory's group.
        set_mode(&full, if group.is_some() { 0o2755 } else { 0o755 })?;
    }
    Ok(())
}

fn publish(target: &Path, fresh: &Path, current: &Path) -> Result<(), Error> {
    let link = target.join(NEW_DATA);
    match fs::remove_file(&link) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("remove", &link, error)),
    }
    let name = Path::new(fresh.file_name().unwrap_or_default());
    symlink(name, &link).map_err(|error| io_error("link", &link, error))?;
    fs::rename(&link, current).map_err(|error| io_error("rename", &link, error))
}

/// Creates one link per first component of the paths, with the file's owner
/// (`createUserVisibleFiles`), and removes stale links. Directories may be mount points of other
/// volumes.
fn link_names(target: &Path, payload: &Payload) -> Result<(), Error> {
    let names = payload
        .iter()
        .filter_map(|(path, file)| Some((path.split('/').next()?, file.owner)));
    let names: BTreeMap<&str, Option<u32>> = names.collect();
    let entries = fs::read_dir(target).map_err(|error| io_error("read", target, error))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let stale = name
            .to_str()
            .is_some_and(|name| !name.starts_with("..") && !names.contains_key(name));
        if stale && !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_file(entry.path()).map_err(|error| io_error("remove", &entry.path(), error))?;
        }
    }
    for (name, owner) in names {
        let link = target.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link).map_err(|error| io_error("link", &link, error))?;
            lchown(&link, owner, None).map_err(|error| io_error("chown", &link, error))?;
        }
    }
    Ok(())
}

/// True if a directory holds exactly the payload.
fn holds(directory: &Path, payload: &Payload) -> bool {
    let mut paths = BTreeSet::new();
    collect(directory, "", &mut paths);
    paths.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let full = directory.join(path);
            let mode = fs::metadata(&full).map(|metadata| metadata.permissions().mode() & 0o777);
            paths.contains(path)
                && mode.is_ok_and(|mode| mode & !0o440 == file.mode & 0o777 & !0o440)
                && fs::read(&full).is_ok_and(|contents| contents == file.contents)
        })
}

fn collect(directory: &Path, prefix: &str, paths: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), &path, paths);
        } else {
            paths.insert(path);
        }
    }
}
