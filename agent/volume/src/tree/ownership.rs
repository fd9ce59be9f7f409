//! `fsGroup`: all files of a volume belong to the pod's group, which may read and write them, and
//! new files inherit the group.

use std::cell::Cell;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use k8s_openapi::api::core::v1::Pod;
use nix::fcntl::AtFlags;
use nix::unistd::{Gid, fchownat};

use super::walk::{self, by_number, metadata};

/// Permission bits of the group for files; directories get more.
const FILES: u32 = 0o660;
const DIRECTORIES: u32 = 0o2110;

/// Applies the pod's `fsGroup`, if any, to a volume at `root`; with the policy `OnRootMismatch`
/// only if the root does not have the group yet.
pub(crate) fn give(root: &File, pod: &Pod) -> io::Result<()> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let Some(context) = context else { return Ok(()) };
    let Some(group) = context.fs_group.and_then(|group| u32::try_from(group).ok()) else {
        return Ok(());
    };
    if context.fs_group_change_policy.as_deref() == Some("OnRootMismatch") && is_given(root, group)? {
        return Ok(());
    }
    let kept = Cell::new(None);
    walk::all(root, |file| {
        let refused = change(file, group)?;
        kept.set(kept.take().or(refused));
        Ok(())
    })?;
    if let Some(error) = kept.into_inner() {
        tracing::warn!(pod = pod.metadata.name, group, %error, "files of a volume keep their group or their mode");
    }
    Ok(())
}

fn is_given(root: &File, group: u32) -> io::Result<bool> {
    let found = root.metadata()?;
    let wanted = FILES | if found.is_dir() { DIRECTORIES } else { 0 };
    Ok(found.gid() == group && found.mode() & wanted == wanted)
}

/// Changes a file as far as its file system lets it: one may know no owners, or be read-only
/// (`changeFilePermission`, `pkg/volume/volume_linux.go`).
/// Returns what it refused.
fn change(file: &OwnedFd, group: u32) -> io::Result<Option<io::Error>> {
    // A change of the owner clears the set-user-ID bit.
    let found = metadata(file)?;
    let owned = fchownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH);
    let refused = owned.err().map(io::Error::from);
    if found.is_symlink() {
        return Ok(refused);
    }
    let mode = found.mode() & 0o7777 | FILES | if found.is_dir() { DIRECTORIES } else { 0 };
    let set = fs::set_permissions(by_number(file), Permissions::from_mode(mode));
    Ok(refused.or(set.err()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    use super::*;

    #[test]
    fn attack_1_a_link_in_a_volume_gives_nothing_outside_to_the_group() {
        let home = tempfile::tempdir().expect("a directory");
        let (outside, volume) = (home.path().join("outside"), home.path().join("volume"));
        fs::create_dir_all(volume.join("sub")).expect("made");
        fs::write(&outside, "").expect("written");
        fs::write(volume.join("sub/file"), "").expect("written");
        fs::set_permissions(volume.join("sub/file"), Permissions::from_mode(0o4600)).expect("set");
        symlink(&outside, volume.join("link")).expect("linked");
        let own = fs::metadata(&outside).expect("there").gid();
        let pod = |policy: &str| -> Pod {
            serde_json::from_value(
                serde_json::json!({"metadata": {}, "spec": {"containers": [], "securityContext": {
                    "fsGroup": 4321, "fsGroupChangePolicy": policy,
                }}}),
            )
            .expect("a pod")
        };
        give(&File::open(&volume).expect("opened"), &pod("Always")).expect("given");
        let look = |path: &str| fs::metadata(volume.join(path)).map(|found| (found.gid(), found.mode() & 0o7777));
        assert_eq!(look("sub/file").expect("there"), (4321, 0o4660));
        assert_eq!(look("sub").expect("there").0, 4321);
        assert_eq!(look("").expect("there").1 & 0o2770, 0o2770);
        assert_eq!(fs::metadata(&outside).expect("there").gid(), own, "outside");

        fs::set_permissions(volume.join("sub/file"), Permissions::from_mode(0o600)).expect("set");
        give(&File::open(&volume).expect("opened"), &pod("OnRootMismatch")).expect("given");
        assert_eq!(
            look("sub/file").expect("there").1,
            0o600,
            "the root is the group's: nothing is looked at"
        );
    }

    #[test]
    fn a_read_only_volume_stays_as_it_is() {
        let volume = tempfile::tempdir().expect("a directory");
        let (path, none) = (volume.path(), None::<&str>);
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::MS_RDONLY, none).expect("mounted");
        let pod = serde_json::json!({"spec": {"containers": [], "securityContext": {"fsGroup": 4321}}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let given = give(&File::open(path).expect("opened"), &pod);
        umount2(path, MntFlags::MNT_DETACH).expect("unmounted");
        given.expect("not refused");
    }
}
