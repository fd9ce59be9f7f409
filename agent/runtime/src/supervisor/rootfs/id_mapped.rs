//! Files of a pod with `hostUsers: false`: ID-mapped mounts show the owners on the disk unchanged
//! inside.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{Gid, Uid, chown};

use crate::supervisor::namespaces::users::Users;
use crate::sys::Mount;

/// Returns the layers as read-only mounts mapped to the pod's users; other pods share the layers.
/// Must be called before this process leaves the machine's mount namespace.
pub(in crate::supervisor) fn layers(users: Option<&Users>, layers: &[PathBuf]) -> io::Result<Vec<Mount>> {
    let taken = layers.iter().map(|layer| {
        let mount = Mount::private(layer)?;
        users.map_or(Ok(()), |users| shift(users, &mount, layer))?;
        mount.protect(libc::MOUNT_ATTR_RDONLY)?;
        Ok(mount)
    });
    taken.collect()
}

/// Gives a directory of the machine the owner of another one, mapped to the pod's users if it has a
/// user namespace.
pub(in crate::supervisor) fn give(users: Option<&Users>, directory: &Path, like: &fs::Metadata) -> io::Result<()> {
    let owner = |id| users.map_or(id, |users| users.on_machine(id).unwrap_or(users.root()));
    let (uid, gid) = (Uid::from_raw(owner(like.uid())), Gid::from_raw(owner(like.gid())));
    Ok(chown(directory, Some(uid), Some(gid))?)
}

/// Maps the topmost mount only: the mounts below it stay as they are, and nothing there belongs to
/// the pod's users.
pub(super) fn shift(users: &Users, mount: &Mount, source: &Path) -> io::Result<()> {
    match mount.map_ids(users.namespace()) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the file system of {} does not support mounts with mapped ids, which hostUsers: false needs",
                source.display()
            ),
        )),
        result => result,
    }
}
