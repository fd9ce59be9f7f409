//! Files for a pod with users of its own: owners are the same inside as on the disk, by mounts that map ids.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{Gid, Uid, chown};
use oci_spec::runtime::Spec;

use super::users::Users;
use crate::Refusal;
use crate::sys::{FileSystem, Mount};

/// Mounts of layers, below the container's directory.
const LAYERS: &str = "layers";
/// Mounts of volumes and files, likewise.
const VOLUMES: &str = "volumes";

/// The layers as the pod's users shall see them. The caller is in a mount namespace of its own.
pub(super) fn layers<'a>(
    users: Option<&Users>,
    layers: &'a [PathBuf],
    directory: &Path,
) -> io::Result<Cow<'a, [PathBuf]>> {
    let Some(users) = users else {
        return Ok(Cow::Borrowed(layers));
    };
    let folder = directory.join(LAYERS);
    fs::create_dir(&folder)?;
    let shifted = layers.iter().enumerate().map(|(number, layer)| {
        let target = folder.join(number.to_string());
        fs::create_dir(&target)?;
        shift(users, Mount::copy(layer)?, layer)?.attach(&target)?;
        Ok(target)
    });
    shifted.collect::<io::Result<Vec<_>>>().map(Cow::Owned)
}

/// Gives a directory of the machine to whom another one belongs among the pod's users.
pub(super) fn give(users: Option<&Users>, directory: &Path, like: &fs::Metadata) -> io::Result<()> {
    let Some(users) = users else { return Ok(()) };
    let owner = |id| users.on_machine(id).unwrap_or(users.root());
    let (uid, gid) = (Uid::from_raw(owner(like.uid())), Gid::from_raw(owner(like.gid())));
    Ok(chown(directory, Some(uid), Some(gid))?)
}

/// Puts mapped mounts in the place of what a configuration binds, but for `except`.
pub(super) fn volumes(users: &Users, spec: &mut Spec, directory: &Path, except: &Path) -> Result<(), Refusal> {
    let folder = directory.join(VOLUMES);
    fs::create_dir(&folder).map_err(|error| Refusal::failed("make room for volumes", &error))?;
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for (number, mount) in mounts.iter_mut().enumerate() {
        let Some(source) = mount.source().clone().filter(|source| source != except) else {
            continue;
        };
        if mount.typ().as_deref() != Some("bind") {
            continue;
        }
        let target = folder.join(number.to_string());
        stage(users, &source, &target).map_err(|error| {
            let doing = format!(
                "map the ids of {} for {}",
                source.display(),
                mount.destination().display()
            );
            Refusal::failed(doing, &error)
        })?;
        mount.set_source(Some(target));
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

fn stage(users: &Users, source: &Path, target: &Path) -> io::Result<()> {
    if fs::metadata(source)?.is_dir() {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    shift(users, Mount::copy_tree(source)?, source)?.attach(target)
}

/// Only the topmost mount: what else is mounted below it stays as it is, the pod's users own nothing there.
fn shift(users: &Users, mount: Mount, source: &Path) -> io::Result<Mount> {
    match mount.map_ids(users.namespace()) {
        Ok(()) => Ok(mount),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the file system of {} does not support mounts with mapped ids, which hostUsers: false needs",
                source.display()
            ),
        )),
        Err(error) => Err(error),
    }
}

/// Makes the way to a directory one that everybody may go, in this process's mount namespace alone: the pod's root has no right
/// to pass what is the agent's own. Nothing else of what was there is left on it.
pub(super) fn open_way(directory: &Path) -> io::Result<()> {
    let closed = |folder: &&Path| {
        folder.parent().is_some() && !fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
    };
    let Some(first) = directory.ancestors().skip(1).filter(closed).last() else {
        return Ok(());
    };
    let own = Mount::copy_tree(directory)?;
    let way = FileSystem::open("tmpfs")?;
    way.set("source", b"way")?;
    way.set("mode", b"0711")?;
    way.mount(0)?.attach(first)?;
    fs::create_dir_all(directory)?;
    own.attach(directory)?;
    Ok(nix::unistd::chdir(directory)?)
}
