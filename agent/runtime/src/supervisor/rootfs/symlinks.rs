//! Resolution of links on the paths of a container's mounts.
//!
//! libcontainer follows links of the image and of volumes inside the container's root, and then
//! creates devices and links in whatever is at `/dev`. A volume that a link leads there would keep
//! them, even the machine's own `/dev`; and what the image calls `/dev`, it finds from this
//! process's root, where sources and layers are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, open, readlinkat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use oci_spec::runtime::{Mount as Wanted, Spec};

use super::delayed::{self, PLACE};
use crate::Refusal;
use crate::sys::Mount;

/// Mount point of procfs.
const PROCESSES: &str = "/proc";
/// Files of procfs that may be covered by emulated ones (as of lxcfs), which show a container its
/// own limits.
const COVERED: [&str; 11] = [
    "cpuinfo",
    "diskstats",
    "loadavg",
    "meminfo",
    "net/dev",
    "slabinfo",
    "stat",
    "swaps",
    "sys/crypto/fips_enabled",
    "sys/kernel/ns_last_pid",
    "uptime",
];
/// Limit of links followed, the same as the kernel's (`MAXSYMLINKS`).
const FOLLOWED: usize = 40;

/// Resolves the destination of each mount of a configuration. Refuses destinations at or above
/// `/dev` that are not named so; and below it, if a mount covers it `later`. `sources` are the bind
/// mounts' sources on the machine, by their numbers; the others are in the mount namespace.
pub(super) fn follow(
    rootfs: &Path,
    config: &Spec,
    sources: &BTreeMap<usize, Mount>,
    later: bool,
) -> Result<Vec<PathBuf>, Refusal> {
    let place = Path::new(PLACE);
    let mut tree = Tree {
        rootfs,
        mounts: Vec::new(),
    };
    if tree.link(place).is_some() {
        return Err(refused(place, "it is a link of the image"));
    }
    let mut all = Vec::new();
    for (number, mount) in config.mounts().iter().flatten().enumerate() {
        let (named, bound) = (mount.destination(), delayed::is_bound(mount));
        if later && delayed::concerns(mount) || delayed::is_device(mount) {
            all.push(named.clone());
            continue;
        }
        let Some(found) = tree.find(named) else {
            return Err(refused(named, "too many links"));
        };
        if found == Path::new("/") && named == &found {
            return Err(refused(named, "it would cover the container's root"));
        }
        if bound {
            check_processes(named, &found, || sources.get(&number).map(|source| &source.0))?;
        }
        let covers = place.starts_with(&found) && (bound || found != place);
        if covers || later && found.starts_with(place) && !named.starts_with(place) {
            return Err(refused(named, "a link leads it to /dev"));
        }
        let inside = match sources.get(&number) {
            Some(source) => Some(Inside::Taken(source)),
            None if bound => staged(mount).map_err(|error| refused(named, &error.to_string()))?,
            None => None,
        };
        all.push(found.clone());
        tree.mounts.push((found, inside));
    }
    Ok(all)
}

/// Resolves a path in a root in which nothing is mounted; `None` if its links form a loop.
pub(in crate::supervisor) fn lead(rootfs: &Path, path: &Path) -> Option<PathBuf> {
    let mounts = Vec::new();
    Tree { rootfs, mounts }.find(path)
}

/// True if it is a file of procfs.
pub(super) fn is_in_processes(place: &Path) -> bool {
    place.starts_with(PROCESSES) && place != Path::new(PROCESSES)
}

/// Refuses mounts that would hide `/proc`: as in runc, only procfs itself may be mounted there, and
/// some of its files may be covered, by their own names.
fn check_processes<'a>(
    named: &Path,
    found: &Path,
    source: impl FnOnce() -> Option<&'a OwnedFd>,
) -> Result<(), Refusal> {
    let Ok(inside) = found.strip_prefix(PROCESSES) else {
        return Ok(());
    };
    let why = if inside == Path::new("") {
        let kind = source()
            .and_then(|source| fstatfs(source).ok())
            .map(|system| system.filesystem_type());
        (kind != Some(PROC_SUPER_MAGIC)).then_some("it is not of type proc")
    } else {
        let own = COVERED.iter().any(|file| inside == Path::new(file)) && found.iter().eq(named.iter());
        (!own).then_some("it is inside /proc")
    };
    match why {
        None => Ok(()),
        Some(why) => Err(refused(
            named,
            &format!("\"{}\" cannot be mounted because {why}", found.display()),
        )),
    }
}

fn staged(mount: &Wanted) -> io::Result<Option<Inside<'static>>> {
    let Some(source) = mount.source() else { return Ok(None) };
    let opened = open(source, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(Some(Inside::Staged(opened)))
}

fn refused(place: &Path, why: &str) -> Refusal {
    Refusal::Failed {
        doing: format!("mount {}", place.display()),
        cause: why.to_owned(),
    }
}

/// Files of a container during its creation: its root and the mounts so far. A new file system of
/// the kernel has no links that lead out of it.
struct Tree<'a> {
    rootfs: &'a Path,
    mounts: Vec<(PathBuf, Option<Inside<'a>>)>,
}

/// Bind mount at a path.
enum Inside<'a> {
    Taken(&'a Mount),
    Staged(OwnedFd),
}

impl AsFd for Inside<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Taken(mount) => mount.0.as_fd(),
            Self::Staged(opened) => opened.as_fd(),
        }
    }
}

impl Tree<'_> {
    /// Resolves a path; `None` if its links form a loop.
    fn find(&self, path: &Path) -> Option<PathBuf> {
        let mut here = PathBuf::from("/");
        let (mut names, mut followed) = (Vec::new(), 0);
        put_first(&mut names, path);
        while let Some(name) = names.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            here.push(name);
            if let Some(target) = self.link(&here) {
                followed += 1;
                if followed > FOLLOWED {
                    return None;
                }
                here.pop();
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                put_first(&mut names, &target);
            }
        }
        Some(here)
    }

    /// Returns the target of a link; `None` if it is no link. The path to it has no links.
    fn link(&self, path: &Path) -> Option<PathBuf> {
        let last = self.mounts.iter().rev().find(|(place, _)| path.starts_with(place));
        match last {
            Some((place, _)) if place == path => None,
            Some((_, None)) => None,
            Some((place, Some(source))) => {
                let inside = path.strip_prefix(place).ok()?;
                readlinkat(source, inside).ok().map(PathBuf::from)
            }
            None => fs::read_link(self.rootfs.join(path.strip_prefix("/").ok()?)).ok(),
        }
    }
}

/// Pushes the names of a path; the next name is the last.
fn put_first(names: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.extend(parts);
}
