//! Working directory of a container, and other directories that must exist.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, fchown};
use oci_spec::runtime::{Mount, Spec};

use super::{namespace, symlinks};
use crate::Refusal;
use crate::supervisor::namespaces::users::Users;
use crate::supervisor::process::program::words;
use crate::sys::open_in_root;

/// Working directory that lies in a volume.
pub(in crate::supervisor) struct InVolume {
    volume: PathBuf,
    directory: PathBuf,
    /// Mount point of the volume.
    point: PathBuf,
    writable: Writable,
}

impl InVolume {
    /// Creates it if the volume does not have it. Links cannot lead out of the volume. Errors are
    /// in runc's words.
    pub(in crate::supervisor) fn make(&self) -> Result<(), Refusal> {
        inside(&self.volume, &self.directory, &self.point, self.writable)
    }
}

/// Returns the working directory, if it lies in a volume.
pub(in crate::supervisor) fn in_volume(spec: &Spec) -> Option<InVolume> {
    let (directory, mount) = place(spec)?;
    let mount = mount?;
    // `None` for an empty file system or one of the kernel's: nothing can be created there
    // beforehand.
    let (volume, writable) = volume(mount)?;
    Some(InVolume {
        volume: volume.to_owned(),
        directory: directory.to_owned(),
        point: mount.destination().clone(),
        writable,
    })
}

/// Creates the working directory if it lies in the image or in the pod's shared memory.
pub(in crate::supervisor) fn in_root(rootfs: &Path, spec: &Spec, users: Option<&Users>) -> Result<(), Refusal> {
    match place(spec) {
        Some((directory, None)) => {
            // If a link of the image leads into a mount, the container's own start reports a
            // missing directory.
            let led = symlinks::lead(rootfs, directory).filter(|led| around(spec, led).is_none());
            make(rootfs, led.as_deref().unwrap_or(directory), users.map(Users::root))
        }
        Some((directory, Some(mount))) if mount.source().as_deref() == Some(Path::new(namespace::MEMORY)) => {
            let memory = Path::new(namespace::MEMORY);
            inside(memory, directory, mount.destination(), Writable::By(None))
        }
        Some((_, Some(_))) | None => Ok(()),
    }
}

/// Creates a directory in a root, owned by `owner` or root.
pub(in crate::supervisor) fn make(rootfs: &Path, directory: &Path, owner: Option<u32>) -> Result<(), Refusal> {
    inside(rootfs, directory, Path::new("/"), Writable::By(owner))
}

/// Returns the working directory and the mount that it lies in.
fn place(spec: &Spec) -> Option<(&Path, Option<&Mount>)> {
    let directory = spec.process().as_ref()?.cwd();
    Some((directory, around(spec, directory)))
}

/// Returns the mount that contains a directory, by its path.
fn around<'a>(spec: &'a Spec, directory: &Path) -> Option<&'a Mount> {
    let mounts = spec.mounts().iter().flatten();
    mounts
        .filter(|mount| directory.starts_with(mount.destination()))
        .max_by_key(|mount| mount.destination().components().count())
}

/// Creates a directory of the container below `root`, which the container sees at `point`.
fn inside(root: &Path, directory: &Path, point: &Path, writable: Writable) -> Result<(), Refusal> {
    let relative = directory.strip_prefix(point).unwrap_or(directory);
    let made = below(root, relative, writable).map_err(|error| error.under(point));
    made.map_err(|error| match error {
        Failure::Making(path, why) => {
            let path = path.display();
            Refusal::Program(format!("error during container init: mkdir {path}: {}", words(why)))
        }
        Failure::Looking(error) => Refusal::failed(format!("make {}", directory.display()), &error),
    })
}

/// Credentials with which directories are created.
#[derive(Clone, Copy)]
enum Writable {
    /// Created, owned by this user, or by root.
    By(Option<u32>),
    ByNobody,
}

/// Cause why the directory cannot be created.
#[derive(Debug)]
enum Failure {
    /// This directory cannot be created.
    Making(PathBuf, Errno),
    /// The existing entry cannot be examined.
    Looking(io::Error),
}

impl Failure {
    /// Prefixes the path in the container.
    fn under(self, point: &Path) -> Self {
        match self {
            // Joining an empty path would leave a trailing slash.
            Self::Making(path, why) if path.as_os_str().is_empty() => Self::Making(point.to_owned(), why),
            Self::Making(path, why) => Self::Making(point.join(path), why),
            Self::Looking(error) => Self::Looking(error),
        }
    }
}

/// Source of a volume, and whether its contents may be changed.
fn volume(mount: &Mount) -> Option<(&Path, Writable)> {
    let fixed = mount
        .options()
        .iter()
        .flatten()
        .any(|option| option == "ro" || option == "rro");
    let source = mount
        .source()
        .as_deref()
        .filter(|_| mount.typ().as_deref() == Some("bind"))?;
    Some((source, if fixed { Writable::ByNobody } else { Writable::By(None) }))
}

/// Creates each missing directory, for its owner and readable by all. The paths of failures are
/// relative.
fn below(root: &Path, directory: &Path, writable: Writable) -> Result<(), Failure> {
    let looking = |error: Errno| Failure::Looking(error.into());
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = match open(root, flags, Mode::empty()) {
        // A volume may be a single file.
        Err(Errno::ENOTDIR) => return Err(Failure::Making(PathBuf::new(), Errno::ENOTDIR)),
        opened => opened.map_err(looking)?,
    };
    let mut so_far = PathBuf::new();
    for part in directory.components() {
        let Component::Normal(name) = part else { continue };
        let parent = enter(root.as_fd(), &so_far).map_err(looking)?;
        so_far.push(name);
        match enter(root.as_fd(), &so_far) {
            Ok(_) => continue,
            // The link may lead elsewhere in the container, with all its mounts: the container's
            // start reports it.
            Err(_) if is_link(&parent, name) => return Ok(()),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(Failure::Making(so_far, error)),
        }
        let Writable::By(owner) = writable else {
            return Err(Failure::Making(so_far, Errno::EROFS));
        };
        mkdirat(parent.as_fd(), Path::new(name), Mode::from_bits_truncate(0o755))
            .map_err(|error| Failure::Making(so_far.clone(), error))?;
        if let Some(owner) = owner {
            let made = open_in_root(&root, &so_far, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(looking)?;
            fchown(made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner))).map_err(looking)?;
        }
    }
    Ok(())
}

fn is_link(parent: &OwnedFd, name: &OsStr) -> bool {
    let found = fstatat(parent, Path::new(name), AtFlags::AT_SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFLNK.bits())
}

fn enter(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    open_in_root(root, path, OFlag::O_PATH | OFlag::O_DIRECTORY)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{Failure, Writable, below, words};

    /// Creates it twice; returns the obstacle, if any.
    fn made(root: &Path, directory: &str, writable: Writable) -> String {
        let mut said = [String::new(), String::new()];
        for text in &mut said {
            *text = match below(root, Path::new(directory), writable).map_err(|error| error.under(Path::new("/"))) {
                Ok(()) => "made".to_owned(),
                Err(Failure::Making(path, why)) => format!("{}: {}", path.display(), words(why)),
                Err(Failure::Looking(error)) => error.to_string(),
            };
        }
        let [first, again] = said;
        assert_eq!(first, again, "{directory}");
        first
    }

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
        let root_makes = Writable::By(None);
        // The targets of the links are not known here.
        for directory in ["/a/b/c", "/inside/d", "/", "/absolute/e", "/relative/f"] {
            assert_eq!(made(&root, directory, root_makes), "made", "{directory}");
        }
        for (directory, why) in [
            ("/file", "/file: not a directory"),
            ("/file/g", "/file: not a directory"),
        ] {
            assert_eq!(made(&root, directory, root_makes), why);
        }
        assert_eq!(made(&root, "/srv", Writable::ByNobody), "made");
        assert_eq!(
            made(&root, "/srv/h", Writable::ByNobody),
            "/srv/h: read-only file system"
        );
        assert!(root.join("a/b/c").is_dir());
        assert!(root.join("srv/d").is_dir());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(made(&root.join("file"), "x", root_makes), "/: not a directory");
    }
}
