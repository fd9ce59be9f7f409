//! Files for a pod with users of its own: owners are the same inside as on the disk, by mounts that map ids.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{Gid, Uid, chown};

use super::stage;
use super::users::Users;
use crate::sys::Mount;

/// Returns the layers as read-only mounts mapped to the pod's users; other pods share the layers.
/// Must be called before this process leaves the machine's mount namespace.
pub(super) fn layers(users: Option<&Users>, layers: &[PathBuf]) -> io::Result<Vec<Mount>> {
    let taken = layers.iter().map(|layer| {
        let mount = stage::private(layer)?;
        users.map_or(Ok(()), |users| shift(users, &mount, layer))?;
        mount.protect(libc::MOUNT_ATTR_RDONLY)?;
        Ok(mount)
    });
    taken.collect()
}

/// Gives a directory of the machine to whom another one belongs, among the pod's users if it has such.
pub(super) fn give(users: Option<&Users>, directory: &Path, like: &fs::Metadata) -> io::Result<()> {
    let owner = |id| users.map_or(id, |users| users.on_machine(id).unwrap_or(users.root()));
    let (uid, gid) = (Uid::from_raw(owner(like.uid())), Gid::from_raw(owner(like.gid())));
    Ok(chown(directory, Some(uid), Some(gid))?)
}

/// Only the topmost mount: what else is mounted below it stays as it is, the pod's users own nothing there.
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
