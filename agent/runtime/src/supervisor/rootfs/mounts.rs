//! Mounts of a container, split into those of the supervisor and those of libcontainer.
//!
//! All mounts that can be attached before libcontainer begins are attached here: libcontainer takes
//! many times as long, applies one propagation mode to all mounts of a container, ignores the mode
//! of each, and resolves destinations by path, so that a process sharing a volume with the
//! container can redirect them meanwhile. Left to libcontainer are the file systems of namespaces
//! that only it creates, with the files in them that may be covered, and all mounts of a pod with
//! `hostUsers: false`: for its users mounts made here would be locked, and the destinations need
//! their privileges.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use oci_spec::runtime::{Mount as Wanted, Spec};

use super::delayed::{self, DelayedMounts};
use super::mount_points::{Root, protect};
use super::namespace;
use super::symlinks;
use super::{id_mapped, shm};
use crate::Refusal;
use crate::supervisor::container::cgroup;
use crate::supervisor::namespaces::users::Users;
use crate::supervisor::streams::libcontainer_log::failed_at;
use crate::sys::Mount;

/// Detached mounts of the configuration's sources, by the number of their mount.
pub(in crate::supervisor) struct Sources {
    /// Mounts to attach.
    wanted: Vec<(usize, Wanted)>,
    /// True if any mount has shared propagation with the machine.
    open: bool,
    mounts: BTreeMap<usize, Mount>,
}

impl Sources {
    /// Takes the mounts of a configuration.
    pub(in crate::supervisor) fn of(spec: &mut Spec) -> Self {
        let open = settle_whole(spec);
        let mounts = spec.mounts().iter().flatten().enumerate();
        let wanted = mounts.filter(|(_, mount)| delayed::is_bound(mount));
        Self {
            wanted: wanted.map(|(number, mount)| (number, mount.clone())).collect(),
            open,
            mounts: BTreeMap::new(),
        }
    }

    /// Must be called in the machine's mount namespace.
    pub(in crate::supervisor) fn take(&mut self, users: Option<&Users>) -> Result<(), Refusal> {
        for (number, mount) in &self.wanted {
            let Some(source) = mount.source().as_deref() else {
                continue;
            };
            let failed = |error: io::Error| Refusal::failed(format!("mount {}", source.display()), &error);
            let copy = copied(mount, source).map_err(failed)?;
            if !says(mount, "rshared") {
                let alone = !self.open || says(mount, "rprivate");
                let propagation = if alone { libc::MS_PRIVATE } else { libc::MS_SLAVE };
                copy.propagate(propagation).map_err(failed)?;
            }
            if let Some(users) = users {
                id_mapped::shift(users, &copy, source).map_err(|error| {
                    let (from, to) = (source.display(), mount.destination().display());
                    Refusal::failed(format!("map the ids of {from} for {to}"), &error)
                })?;
            }
            self.mounts.insert(*number, copy);
        }
        Ok(())
    }

    /// Mounts them and the kernel's file systems in the root, and leaves those of libcontainer in
    /// the configuration and their sources in the mount namespace, from the free slot `first` on.
    /// Returns the mounts that come last, and those after libcontainer. `origins` maps destinations
    /// to the original sources.
    pub(in crate::supervisor) fn put(
        mut self,
        first: usize,
        spec: &mut Spec,
        rootfs: &Path,
        own_users: bool,
        origins: &mut Vec<(PathBuf, PathBuf)>,
    ) -> Result<(Last, DelayedMounts), Refusal> {
        let opened = Root::open(rootfs);
        let mut root = opened.map_err(|error| Refusal::failed("open the root file system", &error))?;
        let (mut held_back, mut left, mut last) = (DelayedMounts::default(), Vec::new(), Vec::new());
        let mut latest: Vec<PathBuf> = Vec::new();
        let late = delayed::is_wanted(spec);
        let places = symlinks::follow(rootfs, spec, &self.mounts, late)?;
        let mounts = spec.mounts().clone().unwrap_or_default().into_iter();
        for (number, (mut mount, place)) in mounts.zip(places).enumerate() {
            let copy = self.mounts.remove(&number);
            if late && delayed::concerns(&mount) || delayed::is_device(&mount) {
                let added = match copy {
                    Some(copy) => held_back.add(&mount, copy),
                    None if is_memory(&mount) => held_back.add_memory(),
                    None => Ok(()),
                };
                added.map_err(|error| Refusal::failed(format!("mount {}", mount.destination().display()), &error))?;
            } else if own_users || needs_libcontainer(&mount, &place) {
                if let Some(copy) = copy {
                    let put = protect(&copy, &mount).and_then(|()| namespace::put(&copy, first + number));
                    let put = put.map_err(|error| {
                        let destination = mount.destination().display();
                        Refusal::failed(format!("set apart what is mounted at {destination}"), &error)
                    })?;
                    mount.set_source(Some(put));
                }
                if let Some((_, origin)) = origins.iter().rfind(|(named, _)| named == mount.destination()) {
                    origins.push((place.clone(), origin.clone()));
                }
                mount.set_destination(place);
                left.push(mount);
            } else if is_last(&mount) || latest.iter().any(|point| place.starts_with(point)) {
                latest.push(place.clone());
                last.push((mount, copy, place));
            } else {
                let mounted = mount_in(&mut root, &mount, copy, &place);
                mounted.map_err(|error| failed_at(&mount, &error, origins))?;
            }
        }
        spec.set_mounts(Some(left));
        Ok((Last { root, mounts: last }, held_back))
    }
}

/// True if the mount depends on the network or cgroup namespace of the mounting process.
fn is_last(mount: &Wanted) -> bool {
    let groups = mount.source().as_deref() == Some(Path::new(cgroup::VIEW));
    groups || mount.typ().as_deref() == Some("sysfs")
}

/// Mounts that are made from within the container's network and cgroup namespaces, and the mounts
/// below them.
pub(in crate::supervisor) struct Last {
    root: Root,
    mounts: Vec<(Wanted, Option<Mount>, PathBuf)>,
}

impl Last {
    pub(in crate::supervisor) fn put(mut self, origins: &[(PathBuf, PathBuf)]) -> Result<(), Refusal> {
        for (mount, copy, place) in self.mounts {
            let mounted = mount_in(&mut self.root, &mount, copy, &place);
            mounted.map_err(|error| failed_at(&mount, &error, origins))?;
        }
        Ok(())
    }
}

fn mount_in(root: &mut Root, wanted: &Wanted, copy: Option<Mount>, place: &Path) -> io::Result<()> {
    match (copy, wanted.source(), wanted.typ()) {
        (Some(copy), _, _) => root.mount(&copy, wanted, place),
        // Its source is in the mount namespace.
        (None, Some(source), _) if delayed::is_bound(wanted) => root.mount(&copied(wanted, source)?, wanted, place),
        (None, _, Some(kind)) => root.mount_new(kind, wanted),
        (None, _, None) => Err(Errno::ENODEV.into()),
    }
}

fn copied(wanted: &Wanted, source: &Path) -> io::Result<Mount> {
    if says(wanted, "rbind") {
        Mount::copy_tree(source)
    } else {
        Mount::copy(source)
    }
}

/// procfs belongs to a PID namespace that libcontainer creates, and covers all that was mounted
/// there before. No link leads to the files in it, as [`symlinks::follow`] has checked.
fn needs_libcontainer(mount: &Wanted, place: &Path) -> bool {
    !delayed::is_bound(mount) && mount.typ().as_deref() == Some("proc") || symlinks::is_in_processes(place)
}

/// Sets the propagation of the root to a value that libcontainer understands; returns whether any
/// mount has shared propagation with the machine.
fn settle_whole(spec: &mut Spec) -> bool {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let whole = linux.rootfs_propagation().clone().unwrap_or_default();
    let whole = whole.strip_prefix('r').unwrap_or("private").to_owned();
    let open = whole != "private";
    linux.set_rootfs_propagation(Some(whole));
    spec.set_linux(Some(linux));
    open
}

/// True if it is the pod's shared memory, which the mount namespace holds.
fn is_memory(mount: &Wanted) -> bool {
    mount.destination() == Path::new(shm::TARGET) && mount.source().as_deref() == Some(Path::new(namespace::MEMORY))
}

fn says(mount: &Wanted, option: &str) -> bool {
    mount.options().iter().flatten().any(|own| own == option)
}
