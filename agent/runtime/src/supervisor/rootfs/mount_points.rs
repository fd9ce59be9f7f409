//! Mount points in a container's root file system, for the mounts made before libcontainer begins.
//!
//! libcontainer resolves each destination by its path with some forty system calls, which was the
//! larger part of a creation's time. Here it is one call in which the kernel follows the links,
//! within the root.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::libc;
use nix::sys::stat::{Mode, fstat, mkdirat};
use oci_spec::runtime::Mount as Wanted;

use crate::sys::{FileSystem, Mount, open_in_root};

/// Directory in which devices are created after all mounts.
const DEVICES: &str = "/dev";

/// Root of a container, mounted, and not in use yet.
pub(in crate::supervisor) struct Root {
    folder: OwnedFd,
    devices: Option<File>,
}

/// Device and inode number of a file.
type File = (libc::dev_t, libc::ino_t);

impl Root {
    pub(in crate::supervisor) fn open(path: &Path) -> io::Result<Self> {
        let folder = open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { folder, devices: None })
    }

    /// Mounts a new file system of the kernel. As with proc, no link of the image may redirect the
    /// mount of the devices, nor sysfs.
    pub(super) fn mount_new(&mut self, kind: &str, wanted: &Wanted) -> io::Result<()> {
        let system = FileSystem::open(kind)?;
        system.set(
            "source",
            wanted
                .source()
                .as_deref()
                .unwrap_or(Path::new(kind))
                .as_os_str()
                .as_encoded_bytes(),
        )?;
        let mut attributes = 0;
        for option in wanted.options().iter().flatten() {
            match (attribute(option), option.split_once('=')) {
                (Some(more), _) => attributes |= more,
                (None, Some((key, value))) => system.set(key, value.as_bytes())?,
                (None, None) => system.set(option, b"")?,
            }
        }
        let devices = wanted.destination() == Path::new(DEVICES);
        if devices {
            // Devices are created in it later.
            attributes &= !libc::MOUNT_ATTR_RDONLY;
        }
        let mount = system.mount(u32::try_from(attributes).map_err(io::Error::other)?)?;
        let place = self.place(wanted.destination(), true)?;
        if kind == "sysfs" && self.is_link(wanted.destination())? {
            return Err(Errno::ENOTDIR.into());
        }
        attach(&mount, &place)?;
        if devices {
            self.devices = Some(file(&mount.0)?);
        }
        Ok(())
    }

    /// Mounts an existing tree at its resolved destination, read-only or not as the configuration
    /// says.
    pub(in crate::supervisor) fn mount(&self, mount: &Mount, wanted: &Wanted, destination: &Path) -> io::Result<()> {
        protect(mount, wanted)?;
        let place = self.place(destination, mount.is_directory()?)?;
        let covers = file(&place)?;
        if self.devices == Some(covers) || file(&self.folder)? == covers {
            // Devices would be created in a volume: a link was changed meanwhile to lead there.
            return Err(Errno::ELOOP.into());
        }
        attach(mount, &place)
    }

    /// Opens a mount point, and creates it if missing.
    fn place(&self, destination: &Path, folder: bool) -> io::Result<OwnedFd> {
        match self.find(destination, OFlag::empty()) {
            Err(Errno::ENOENT) => {}
            found => return Ok(found?),
        }
        self.make(destination, folder)?;
        Ok(self.find(destination, OFlag::empty())?)
    }

    fn make(&self, destination: &Path, folder: bool) -> io::Result<()> {
        let mut names = destination.components().filter_map(normal).peekable();
        let (mut so_far, mut here) = (PathBuf::from("/"), self.find(Path::new("/"), OFlag::empty())?);
        while let Some(name) = names.next() {
            so_far.push(name);
            here = match self.find(&so_far, OFlag::empty()) {
                Err(Errno::ENOENT) => {
                    make(&here, name, folder || names.peek().is_some())?;
                    self.find(&so_far, OFlag::empty())?
                }
                found => found?,
            };
        }
        Ok(())
    }

    fn is_link(&self, path: &Path) -> io::Result<bool> {
        let found = self.find(path, OFlag::O_NOFOLLOW)?;
        Ok(fstat(&found)?.st_mode & libc::S_IFMT == libc::S_IFLNK)
    }

    /// Opens a path; links cannot lead out of the root.
    fn find(&self, path: &Path, more: OFlag) -> Result<OwnedFd, Errno> {
        open_in_root(&self.folder, path, OFlag::O_PATH | more)
    }
}

fn attach(mount: &Mount, place: &OwnedFd) -> io::Result<()> {
    mount.attach_over(place).map_err(|error| match error.raw_os_error() {
        // The kernel refuses so to cover a directory by a file, or a file by a directory.
        Some(libc::EINVAL) => Errno::ENOTDIR.into(),
        _ => error,
    })
}

/// Creates a mount point, unless another container of the pod has just created it.
pub(in crate::supervisor) fn make(here: &OwnedFd, name: &OsStr, folder: bool) -> Result<(), Errno> {
    let made = if folder {
        mkdirat(here, name, Mode::from_bits_truncate(0o755))
    } else {
        let make = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        openat(here, name, make, Mode::from_bits_truncate(0o644)).map(drop)
    };
    match made {
        Err(Errno::EEXIST) => Ok(()),
        made => made,
    }
}

fn normal(part: Component<'_>) -> Option<&OsStr> {
    match part {
        Component::Normal(name) => Some(name),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    }
}

fn file(of: &OwnedFd) -> io::Result<File> {
    let found = fstat(of)?;
    Ok((found.st_dev, found.st_ino))
}

/// Sets the attributes of a mount from its options.
pub(in crate::supervisor) fn protect(mount: &Mount, wanted: &Wanted) -> io::Result<()> {
    let options = || wanted.options().iter().flatten();
    if options().any(|option| option == "rro") {
        mount.protect_all(libc::MOUNT_ATTR_RDONLY)?;
    }
    match options()
        .filter_map(|option| attribute(option))
        .fold(0, |all, one| all | one)
    {
        0 => Ok(()),
        attributes => mount.protect(attributes),
    }
}

/// Mount attribute of an option; `None` for an option of the file system.
fn attribute(option: &str) -> Option<u64> {
    Some(match option {
        "ro" => libc::MOUNT_ATTR_RDONLY,
        "nosuid" => libc::MOUNT_ATTR_NOSUID,
        "nodev" => libc::MOUNT_ATTR_NODEV,
        "noexec" => libc::MOUNT_ATTR_NOEXEC,
        "strictatime" => libc::MOUNT_ATTR_STRICTATIME,
        // Defaults of every mount, and options that are handled elsewhere.
        "rw" | "relatime" | "bind" | "rbind" | "rprivate" | "rslave" | "rshared" | "rro" => 0,
        _ => return None,
    })
}
