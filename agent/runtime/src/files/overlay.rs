//! Root file systems: the layers of an image, topmost last, under a writable directory.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;

use super::label;
use crate::sys::{FileSystem, Mount, kernel_since};

/// Longest value of a mount option, with its trailing zero.
const OPTION: usize = 256;

/// Writable layer of a container.
#[derive(Clone, Copy)]
pub(crate) struct Writable<'a> {
    pub(crate) upper: &'a Path,
    pub(crate) work: &'a Path,
}

/// Mounts the layers under a writable directory. With a label, all files have it.
pub(crate) fn attach(layers: &[PathBuf], writable: Writable<'_>, label: Option<&str>, target: &Path) -> io::Result<()> {
    if one_by_one() {
        let overlay = configured(layers, Some(writable))?;
        if let Some(label) = label {
            overlay.set(label::OPTION, label.as_bytes())?;
        }
        overlay.mount(0)?.attach(target)
    } else {
        attach_joined(layers, Some(writable), label, target)
    }
}

/// Mounts the layers read-only, detached. `scratch` is a free name.
pub(crate) fn view(layers: &[PathBuf], scratch: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    if let [only] = layers {
        return Ok(open(only, flags, Mode::empty())?);
    }
    if one_by_one() {
        let attributes = u32::try_from(nix::libc::MOUNT_ATTR_RDONLY).map_err(io::Error::other)?;
        return Ok(configured(layers, None)?.mount(attributes)?.0);
    }
    detached(scratch, |target| attach_joined(layers, None, None, target))
}

/// Mounts the layers under a writable directory, detached. `scratch` is a free name.
pub(crate) fn open_writable(layers: &[PathBuf], writable: Writable<'_>, scratch: &Path) -> io::Result<OwnedFd> {
    if one_by_one() {
        return Ok(configured(layers, Some(writable))?.mount(0)?.0);
    }
    detached(scratch, |target| attach_joined(layers, Some(writable), None, target))
}

/// Mounts at `scratch`, a free name, and detaches the mount.
pub(crate) fn detached(scratch: &Path, attach: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    fs::create_dir(scratch)?;
    let root = attach(scratch).and_then(|()| {
        let root = open(scratch, flags, Mode::empty()).map_err(io::Error::from);
        // The open descriptor keeps the detached mount.
        umount2(scratch, MntFlags::MNT_DETACH)?;
        root
    });
    fs::remove_dir(scratch)?;
    root
}

/// Mounts the layers read-only.
pub(crate) fn attach_fixed(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    if let [only] = layers {
        let copy = Mount::copy(only)?;
        copy.protect(nix::libc::MOUNT_ATTR_RDONLY)?;
        return copy.attach(target);
    }
    if one_by_one() {
        let attributes = u32::try_from(nix::libc::MOUNT_ATTR_RDONLY).map_err(io::Error::other)?;
        return configured(layers, None)?.mount(attributes)?.attach(target);
    }
    attach_joined(layers, None, None, target)
}

/// True if the kernel accepts layers one by one (`lowerdir+`), so that the page size bounds neither
/// their number nor their paths.
fn one_by_one() -> bool {
    kernel_since((6, 8))
}

/// True if the kernel supports the option `volatile`, which skips the sync on unmount: a
/// container's writable layer is not needed after a crash of the machine.
pub(crate) fn can_be_volatile() -> bool {
    kernel_since((5, 10))
}

fn configured(layers: &[PathBuf], writable: Option<Writable<'_>>) -> io::Result<FileSystem> {
    let overlay = FileSystem::open("overlay")?;
    let mut held = Vec::new();
    let mut set = |key: &str, path: &Path| {
        let path = path.as_os_str().as_bytes();
        // The kernel interprets a backslash as an escape in some options.
        if path.len() < OPTION && !path.contains(&b'\\') {
            return overlay.set(key, path);
        }
        let short = Short::of(Path::new(std::ffi::OsStr::from_bytes(path)))?;
        let set = overlay.set(key, short.path.as_bytes());
        held.push(short);
        set
    };
    for layer in layers.iter().rev() {
        set("lowerdir+", layer)?;
    }
    if let Some(Writable { upper, work }) = writable {
        set("upperdir", upper)?;
        set("workdir", work)?;
        overlay.set("volatile", b"")?;
    }
    overlay.set("source", b"overlay")?;
    Ok(overlay)
}

/// For older kernels: all options must fit into one page, so each directory is passed as
/// `/proc/self/fd/N`.
fn attach_joined(
    layers: &[PathBuf],
    writable: Option<Writable<'_>>,
    label: Option<&str>,
    target: &Path,
) -> io::Result<()> {
    let shorts = layers.iter().rev().map(|layer| Short::of(layer));
    let shorts = shorts.collect::<io::Result<Vec<_>>>()?;
    let paths: Vec<&str> = shorts.iter().map(|short| short.path.as_str()).collect();
    let mut options = format!("lowerdir={}", paths.join(":"));
    let mut held = Vec::new();
    let mut flags = MsFlags::MS_RDONLY;
    if let Some(Writable { upper, work }) = writable {
        flags = MsFlags::empty();
        for (key, path) in [("upperdir", upper), ("workdir", work)] {
            let short = Short::of(path)?;
            options.extend([",", key, "=", &short.path]);
            held.push(short);
        }
        if can_be_volatile() {
            options.push_str(",volatile");
        }
    }
    if let Some(label) = label {
        options.extend([",", &label::quoted(label)]);
    }
    Ok(mount(
        Some("overlay"),
        target,
        Some("overlay"),
        flags,
        Some(options.as_str()),
    )?)
}

/// Short path of a directory, valid as long as this exists.
struct Short {
    path: String,
    _directory: OwnedFd,
}

impl Short {
    fn of(directory: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(directory, flags, Mode::empty())?;
        Ok(Self {
            path: format!("/proc/self/fd/{}", directory.as_raw_fd()),
            _directory: directory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a mount namespace of the test's process.
    #[test]
    fn many_layers_with_long_paths_are_one_root() {
        assert!(nix::unistd::geteuid().is_root(), "mounting needs root");
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(200)).join("y".repeat(200));
        let layers: Vec<PathBuf> = (0..60).map(|number| long.join(format!("layer-{number}"))).collect();
        for (number, layer) in layers.iter().enumerate() {
            fs::create_dir_all(layer).unwrap();
            fs::write(layer.join(format!("file-{number}")), "").unwrap();
            fs::write(layer.join("last"), number.to_string()).unwrap();
        }
        let made = |name: &str| {
            let path = long.join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let whole = |root: &Path| {
            assert_eq!(fs::read_dir(root).unwrap().count(), 61);
            assert_eq!(fs::read_to_string(root.join("last")).unwrap(), "59");
        };
        for (name, joined) in [("one-by-one", false), ("joined", true)] {
            let (upper, work) = (made(&format!("{name}-upper")), made(&format!("{name}-work")));
            let (upper, work) = (upper.as_path(), work.as_path());
            let target = made(name);
            let writable = Writable { upper, work };
            if joined {
                attach_joined(&layers, Some(writable), None, &target).unwrap();
            } else {
                attach(&layers, writable, None, &target).unwrap();
            }
            whole(&target);
            fs::write(target.join("new"), "").unwrap();
            assert!(upper.join("new").exists());
            umount2(&target, MntFlags::empty()).unwrap();
        }
        for (name, some) in [("fixed", layers.as_slice()), ("single", &layers[59..])] {
            let target = made(name);
            attach_fixed(some, &target).unwrap();
            assert_eq!(fs::read_dir(&target).unwrap().count(), some.len() + 1);
            let refused = fs::write(target.join("new"), "").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem, "{name}");
            umount2(&target, MntFlags::empty()).unwrap();
        }
        let root = view(&layers, &long.join("scratch")).unwrap();
        whole(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())));
    }
}
