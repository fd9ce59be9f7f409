//! The directory that a container's program starts in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, fchown};
use oci_spec::runtime::{Mount, Spec};

use super::stage;
use super::users::Users;

/// Makes the working directory where the volume that it lies in has none. No link leads out of it.
pub(super) fn in_volume(spec: &Spec) -> io::Result<()> {
    let Some((directory, Some(mount))) = place(spec) else {
        return Ok(());
    };
    match volume(mount) {
        Some(volume) => {
            let inside = directory.strip_prefix(mount.destination()).unwrap_or(directory);
            below(volume, inside, None)
        }
        // A file system that is empty, or the kernel's: nothing can be made there beforehand.
        None => Ok(()),
    }
}

/// The same where it is the image, or the pod's shared memory, that has none.
pub(super) fn in_root(rootfs: &Path, spec: &Spec, users: Option<&Users>) -> io::Result<()> {
    match place(spec) {
        Some((directory, None)) => below(rootfs, directory, users.map(Users::root)),
        Some((directory, Some(mount))) if mount.source().as_deref() == Some(Path::new(stage::MEMORY)) => {
            let inside = directory.strip_prefix(mount.destination()).unwrap_or(directory);
            below(Path::new(stage::MEMORY), inside, None)
        }
        Some((_, Some(_))) | None => Ok(()),
    }
}

/// The working directory and the mount that it lies in.
fn place(spec: &Spec) -> Option<(&Path, Option<&Mount>)> {
    let directory = spec.process().as_ref()?.cwd();
    let around = spec
        .mounts()
        .iter()
        .flatten()
        .filter(|mount| directory.starts_with(mount.destination()))
        .max_by_key(|mount| mount.destination().components().count());
    Some((directory, around))
}

/// Where a volume lies whose contents may be changed.
fn volume(mount: &Mount) -> Option<&Path> {
    let fixed = mount.options().iter().flatten().any(|option| option == "ro");
    mount
        .source()
        .as_deref()
        .filter(|_| mount.typ().as_deref() == Some("bind") && !fixed)
}

/// Makes each directory that is missing, for its owner and readable by all.
fn below(root: &Path, directory: &Path, owner: Option<u32>) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = match open(root, flags, Mode::empty()) {
        // A volume may be a single file.
        Err(Errno::ENOTDIR) => return Ok(()),
        opened => opened?,
    };
    let mut so_far = std::path::PathBuf::new();
    for part in directory.components() {
        let Component::Normal(name) = part else { continue };
        let parent = enter(root.as_fd(), &so_far)?;
        so_far.push(name);
        match enter(root.as_fd(), &so_far) {
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Whatever is there instead: the container's own start tells.
            Err(_) => return Ok(()),
        }
        match mkdirat(parent.as_fd(), Path::new(name), Mode::from_bits_truncate(0o755)) {
            Ok(()) => {}
            // A link that leads nowhere.
            Err(Errno::EEXIST) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if let Some(owner) = owner {
            let made = OpenHow::new()
                .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
            let made = openat2(root.as_fd(), &so_far, made)?;
            fchown(made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        }
    }
    Ok(())
}

fn enter(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    Ok(openat2(root, path, how)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::below;

    #[test]
    fn attack_11_missing_directories_are_made_inside_whatever_the_links_say() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(root.join("srv")).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink("/srv", root.join("inside")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        for directory in ["/a/b/c", "/inside/d", "/absolute/e", "/relative/f", "/file/g", "/"] {
            below(&root, Path::new(directory), None).unwrap();
            below(&root, Path::new(directory), None).unwrap();
        }
        assert!(root.join("a/b/c").is_dir());
        assert!(root.join("srv/d").is_dir());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        below(&root.join("file"), Path::new("x"), None).unwrap();
    }
}
