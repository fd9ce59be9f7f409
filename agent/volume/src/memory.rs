//! tmpfs that holds a pod's secrets.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount as mount_file_system};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::{Error, io_error, make_directory};

/// Size limit. A tmpfs uses memory only for its contents.
const OPTIONS: &str = "mode=0755,size=256m";

/// Mounts the tmpfs, unless it is mounted already.
pub(crate) fn mount(directory: &Path) -> Result<(), Error> {
    make_directory(directory)?;
    let parent = directory.parent().unwrap_or(directory);
    let device = |path: &Path| {
        let found = std::fs::metadata(path).map_err(|error| io_error("look at", path, error))?;
        Ok::<_, Error>(std::os::unix::fs::MetadataExt::dev(&found))
    };
    let kind = statfs(directory).map_err(|error| io_error("look at", directory, error))?;
    if kind.filesystem_type() == TMPFS_MAGIC && device(directory)? != device(parent)? {
        return Ok(());
    }
    // Secrets may hold programs, so no `noexec`; but `nosuid` and `nodev`.
    mount_tmpfs(directory, OPTIONS).map_err(|error| io_error("mount tmpfs at", directory, error))
}

/// Mounts a tmpfs that is never swapped out, so that nothing of it gets to a disk
/// (`pkg/kubelet/util/swap/swap_util.go`).
pub(crate) fn mount_tmpfs(directory: &Path, options: &str) -> Result<(), Errno> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let attempt = |options: &str| mount_file_system(Some("tmpfs"), directory, Some("tmpfs"), flags, Some(options));
    match attempt(&format!("{options},noswap")) {
        // The kernel is older than 6.4, or the agent in a user namespace.
        Err(Errno::EINVAL | Errno::EPERM) => attempt(options),
        mounted => mounted,
    }
}

#[cfg(test)]
mod tests {
    use nix::mount::{MntFlags, umount2};

    use super::*;

    #[test]
    fn what_is_in_memory_is_not_swapped_out_where_the_kernel_can_keep_it() {
        let home = tempfile::tempdir().expect("a directory");
        let own = home.path().canonicalize().expect("there");
        let unmount = || umount2(&own, MntFlags::MNT_DETACH).expect("unmounted");
        let tried = mount_file_system(Some("tmpfs"), &own, Some("tmpfs"), MsFlags::empty(), Some("noswap"));
        if tried.is_ok() {
            unmount();
        }
        mount_tmpfs(&own, OPTIONS).expect("mounted");
        let table = trees::mounts::read().expect("read");
        let kept = trees::mounts::parse(&table).any(|mount| mount.point == own && mount.options.contains("noswap"));
        unmount();
        assert_eq!(kept, tried.is_ok());
    }
}
