//! Removes directory trees that containers have filled. They may have any depth and links anywhere,
//! and a directory may hide a mount: no link is followed, nothing outside is touched, and neither
//! stack usage nor the number of open files grows with the depth. To that end, directories below
//! the first levels are moved up into the root of the tree. Several callers may remove the same
//! tree at once, or one of them a part of it.
//!
//! `std::fs::remove_dir_all` would crash the process on such a tree: it recurses once per level,
//! with an open file for each.

pub mod mounts;

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Number of names read at once.
const BATCH: usize = 1024;
/// Maximum number of attempts at a directory that others, such as a concurrent removal, keep
/// filling.
const ATTEMPTS: u32 = 1000;
/// Number of levels below the root that are removed where they are.
const IN_PLACE: u32 = 8;

/// Removes the file or tree at a path; succeeds if there is none.
pub fn remove(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    match File::open(parent) {
        Ok(parent) => remove_in(&parent, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the file or tree `name` in `parent`; succeeds if there is none.
pub fn remove_in(parent: &impl AsFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    empty(parent, name, None, &mut 0, 0)
}

fn open(parent: &impl AsFd, name: &OsStr) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    Ok(File::from(openat2(parent, name, how)?))
}

/// Removes the entries of a directory, subdirectories by calling `directory`. It is read until it
/// is empty if that may add entries to it, as to a root.
fn clear(held: &File, is_root: bool, mut directory: impl FnMut(&OsStr) -> io::Result<()>) -> io::Result<()> {
    loop {
        let names = entries(held)?;
        let is_last = names.is_empty() || (!is_root && names.len() < BATCH);
        for name in names {
            let name = OsStr::from_bytes(name.to_bytes());
            match unlinkat(held, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => directory(name)?,
                Err(error) => return Err(error.into()),
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

fn entries(directory: &File) -> io::Result<Vec<CString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::openat(directory, ".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

/// Removes a directory after its entries; deep subdirectories are moved to the root, which the
/// directory itself may be.
fn empty(parent: &impl AsFd, name: &OsStr, root: Option<&File>, moved: &mut u64, level: u32) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        let directory = match open(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            directory => directory?,
        };
        let cleared = match root {
            Some(root) if level >= IN_PLACE => clear(&directory, false, |name| move_up(root, &directory, name, moved)),
            Some(root) => clear(&directory, false, |name| {
                empty(&directory, name, Some(root), moved, level + 1)
            }),
            None => clear(&directory, true, |name| {
                empty(&directory, name, Some(&directory), moved, 1)
            }),
        };
        match cleared {
            // It was removed concurrently, together with its entries.
            Err(_) if fstat(&directory)?.st_nlink == 0 => {}
            cleared => cleared?,
        }
        match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            // Another process, or a concurrent removal of a part, has added an entry.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::ENOTEMPTY.into())
}

fn move_up(root: &File, directory: &File, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved = moved.saturating_add(1);
        let target = format!(".removed-{moved}");
        match renameat(directory, name, root, Path::new(&target)) {
            Ok(()) => return Ok(()),
            // The tree has an entry of this name already.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(Errno::ENOENT) if fstat(root)?.st_nlink > 0 => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;

    /// Much less than one stack frame or one open file for each level.
    const STACK: usize = 128 << 10;
    const FILES: u64 = 64;
    const LEVELS: usize = 30_000;

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
        std::fs::write(tree.join(".removed-2"), "").expect("written");
        let mut deepest = File::open(&tree).expect("opened");
        for _ in 0..LEVELS {
            nix::sys::stat::mkdirat(&deepest, "d", Mode::S_IRWXU).expect("made");
            deepest = open(&deepest, OsStr::new("d")).expect("opened");
        }
        drop(deepest);
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, FILES, hard).expect("lowered");
        let (gone, nothing) = (tree.clone(), home.path().join("nothing"));
        let removing = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            remove(&gone).expect("removed");
            remove(&gone).expect("it is gone");
            remove(&nothing).expect("it never was");
            remove(&nothing.join("in it")).expect("nor what would be in it");
        });
        removing.expect("started").join().expect("ended well");
        assert!(!tree.exists() && outside.join("kept").exists());
    }

    #[test]
    fn a_link_or_a_file_goes_itself_and_a_wide_directory_whole() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir(at("wide")).expect("made");
        for number in 0..=BATCH {
            std::fs::create_dir_all(at("wide").join(format!("{number}/inner"))).expect("made");
        }
        symlink(at("wide"), at("link")).expect("linked");
        remove(&at("link")).expect("removed");
        assert!(at("wide").join("0/inner").exists(), "what the link leads to");
        remove(&at("wide")).expect("removed");
        std::fs::write(at("file"), "").expect("written");
        remove(&at("file")).expect("removed");
        assert_eq!(std::fs::read_dir(home.path()).expect("read").count(), 0);
        assert!(remove(Path::new("/")).is_err() && remove(&at("..")).is_err());
    }
    #[test]
    fn several_remove_the_same_tree_and_parts_of_it() {
        let home = tempfile::tempdir().expect("a directory");
        for round in 0..20 {
            let tree = home.path().join(format!("tree-{round}"));
            for number in 0..100 {
                std::fs::create_dir_all(
                    tree.join(format!("part/{}/a/b/c/d", number % 10))
                        .join(number.to_string()),
                )
                .expect("made");
            }
            std::thread::scope(|scope| {
                for path in [tree.clone(), tree.join("part"), tree.join("part/3"), tree.clone()] {
                    scope.spawn(move || remove(&path).expect("removed"));
                }
            });
            assert!(!tree.exists(), "round {round}");
        }
    }
}
