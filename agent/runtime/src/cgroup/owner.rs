//! Ownership of groups: an extended attribute on them, so that two agents of one machine never take
//! each other's pods for orphans.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::{Cgroups, files};

/// Extended attribute with the owner's state directory.
const MARK: &str = "trusted.skiff.owner";
/// Longest path of an owner; the kernel's own limit.
const LONGEST: usize = 4096;

impl Cgroups {
    /// Marks a group with all below it as the owner's, or returns its other owner. A group in use
    /// without a mark belongs to an owner that is `known` to have had pods: it is older than the
    /// marks. If the kernel has no extended attributes there, any owner is accepted.
    pub(crate) fn own(&self, group: &Path, owner: &Path, known: bool) -> io::Result<Result<(), PathBuf>> {
        let Some(mount) = self.tracking() else {
            return Ok(Ok(()));
        };
        // The owner's directory is gone: the mark is stale. The runtimes of one agent have sibling
        // directories.
        let other = |mark: &PathBuf| mark.parent() != owner.parent() && mark.exists();
        for part in group.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            if let Some(other) = mark(&mount.join(part))?.filter(other) {
                return Ok(Err(other));
            }
        }
        let place = mount.join(group);
        let used = !files::children(&place).is_empty() || !files::pids(&place)?.is_empty();
        if used && !known && mark(&place)?.is_none() {
            return Ok(Err(PathBuf::from("something else than Skiff")));
        }
        fs::create_dir_all(&place)?;
        match setxattr(&place, MARK, owner.as_os_str().as_bytes(), XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(Ok(())),
            Err(error) => Err(error.into()),
        }
    }
}

fn mark(group: &Path) -> io::Result<Option<PathBuf>> {
    let mut value = vec![0_u8; LONGEST];
    match getxattr(group, MARK, &mut value) {
        Ok(length) => {
            let text = value.get(..length).unwrap_or_default();
            Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(text))))
        }
        Err(Errno::NODATA | Errno::NOENT | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_another_are_told_and_left_alone() {
        let cgroups = Cgroups::detect().unwrap();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let runtime = |agent: &tempfile::TempDir, name: &str| {
            let path = agent.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (first, beside, second) = (runtime(&one, "a"), runtime(&one, "b"), runtime(&two, "a"));
        let root = PathBuf::from(format!("skiff-owner-{}", std::process::id()));
        let own = |group: &Path, owner: &Path, known| cgroups.own(group, owner, known).unwrap();
        let told = [own(&root, &first, false), own(&root, &beside, false)];
        let refused = own(&root, &second, true);
        let below = own(&root.join("node"), &second, true);
        // Groups that others made without a mark, and groups of earlier versions of the agent.
        let strange = root.with_extension("strange");
        let place = cgroups.tracking().unwrap().join(strange.join("service"));
        fs::create_dir_all(&place).unwrap();
        let unmarked = [own(&strange, &first, false), own(&strange, &first, true)];
        drop(one);
        let left = own(&root, &second, false);
        let failures = [cgroups.remove(&root), cgroups.remove(&strange)].concat();
        assert_eq!(failures, Vec::<String>::new());
        assert_eq!(told, [Ok(()), Ok(())]);
        assert!(refused.is_err() && below == refused, "{refused:?} {below:?}");
        assert!(unmarked[0].is_err() && unmarked[1].is_ok(), "{unmarked:?}");
        assert_eq!(left, Ok(()), "its owner is gone");
    }
}
