//! Removing trees that containers have filled. They may be of any depth and have links anywhere, and a directory may hide a
//! mount: nothing is followed, nothing outside is touched, and neither the stack nor the number of open files grows with the
//! depth. For that, what lies in a directory of the tree is moved up into its root first.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Names that are read at once.
const BATCH: usize = 1024;

/// Removes `name` in `parent`, whatever it is; success when it is not there.
pub(crate) fn remove(parent: &impl AsFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    let root = open(parent, name)?;
    let mut moved: u64 = 0;
    loop {
        let names = entries(&root)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            match unlinkat(&root, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => empty(&root, &name, &mut moved)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)?;
    Ok(())
}

fn open(parent: &impl AsFd, name: &OsStr) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    Ok(File::from(openat2(parent, name, how)?))
}

fn entries(directory: &File) -> io::Result<Vec<OsString>> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let names = std::fs::read_dir(path)?.take(BATCH).map(|entry| Ok(entry?.file_name()));
    names.collect()
}

/// Removes a directory of the root after its files; its own directories go to the root.
fn empty(root: &File, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    let directory = open(root, name)?;
    loop {
        let names = entries(&directory)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            match unlinkat(&directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => move_up(root, &directory, &name, moved)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    unlinkat(root, name, UnlinkatFlags::RemoveDir)?;
    Ok(())
}

fn move_up(root: &File, directory: &File, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved = moved.saturating_add(1);
        let target = format!(".removed-{moved}");
        match renameat(directory, name, root, Path::new(&target)) {
            Ok(()) => return Ok(()),
            // Somebody's own file or directory of that name.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn attack_5_a_tree_of_any_depth_goes_and_links_are_not_followed() {
        let home = tempfile::tempdir().expect("a directory");
        let outside = home.path().join("outside");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("kept"), "").expect("written");
        let tree = home.path().join("tree");
        std::fs::create_dir(&tree).expect("made");
        symlink(&outside, tree.join("link")).expect("linked");
        std::fs::create_dir(tree.join(".removed-1")).expect("made");
        std::fs::write(tree.join(".removed-1/file"), "").expect("written");
        let mut deepest = File::open(&tree).expect("opened");
        for _ in 0..20_000 {
            nix::sys::stat::mkdirat(&deepest, "d", nix::sys::stat::Mode::S_IRWXU).expect("made");
            deepest = open(&deepest, OsStr::new("d")).expect("opened");
        }
        let parent = File::open(home.path()).expect("opened");
        remove(&parent, OsStr::new("tree")).expect("removed");
        remove(&parent, OsStr::new("tree")).expect("it is gone");
        remove(&parent, OsStr::new("nothing")).expect("it never was");
        assert!(!tree.exists() && outside.join("kept").exists());
    }
}
