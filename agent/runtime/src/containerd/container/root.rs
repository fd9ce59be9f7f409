//! Root file systems: each container has a writable snapshot on top of its image's.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use agent_containerd::{KEPT, OWNER};
use containerd_client::services::v1::snapshots::{
    ListSnapshotsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, UsageRequest,
};
use containerd_client::types::Mount;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, fstat, fstatat};
use oci_spec::runtime::{Mount as Bound, Spec};

use crate::containerd::Shared;
use crate::containerd::client::{CALL, Meaning, TASK, meaning, or_gone, within};
use crate::files::label;
use crate::files::overlay::{self, Writable};
use crate::supervisor::rootfs::declared;
use crate::sys::open_in_root;
use crate::{Error, Refusal, Written};

impl Shared {
    /// Prepares a writable snapshot of an image's. A label protects it from garbage collection
    /// until its container refers to it.
    pub(super) async fn prepare_root(&self, id: &str, image: &str) -> Result<Vec<Mount>, Error> {
        if image.is_empty() {
            return Err(Error::Invalid {
                what: "snapshot",
                value: String::new(),
            });
        }
        let prepare = async || {
            let prepared = self.client.snapshot("prepare a snapshot", |mut snapshots| {
                let labels = [(OWNER, self.owner()), (KEPT, "true".to_owned())];
                let request = self.client.request(PrepareSnapshotRequest {
                    snapshotter: self.config.snapshotter.clone(),
                    key: id.to_owned(),
                    parent: image.to_owned(),
                    labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
                });
                async move { snapshots.prepare(request).await }
            });
            prepared.await.map_err(Error::from)
        };
        match prepare().await {
            // Left by an earlier attempt of the same name.
            Err(error) if meaning(&error) == Meaning::Exists => {
                self.remove_root(id).await?;
                prepare().await
            }
            prepared => prepared,
        }
        .map(|prepared| prepared.mounts)
    }

    /// Removes a container's snapshot; succeeds if it does not exist.
    pub(in crate::containerd) async fn remove_root(&self, id: &str) -> Result<(), Error> {
        let request = self.client.request(RemoveSnapshotRequest {
            snapshotter: self.config.snapshotter.clone(),
            key: id.to_owned(),
        });
        let removed = within(TASK, "remove a snapshot", self.client.snapshots().remove(request)).await;
        or_gone(removed).map(drop)
    }

    /// Usage of a container's writable layer; `None` if containerd does not report it.
    pub(in crate::containerd) async fn written(&self, id: &str) -> Option<Written> {
        let request = self.client.request(UsageRequest {
            snapshotter: self.config.snapshotter.clone(),
            key: id.to_owned(),
        });
        let counted = within(TASK, "count a snapshot", self.client.snapshots().usage(request)).await;
        match or_gone(counted) {
            Ok(counted) => counted.map(|counted| Written::Counted {
                bytes: counted.size,
                inodes: counted.inodes,
            }),
            Err(error) => {
                tracing::warn!(container = id, %error, "what it wrote could not be counted");
                None
            }
        }
    }

    /// Removes snapshots with our label that belong to no container: a crash came between the two.
    pub(in crate::containerd) async fn remove_stray_roots(&self) -> Result<(), Error> {
        let request = self.client.request(ListSnapshotsRequest {
            snapshotter: self.config.snapshotter.clone(),
            filters: vec![format!("labels.\"{OWNER}\"=={:?}", self.owner())],
        });
        let mut listed = within(CALL, "list snapshots", self.client.snapshots().list(request)).await?;
        let mut strays = Vec::new();
        let broken = |status| Error::Containerd {
            doing: "list snapshots",
            source: agent_containerd::Failure::from(status),
        };
        while let Some(page) = listed.message().await.map_err(broken)? {
            let names = page.info.into_iter().map(|info| info.name);
            let known =
                |name: &String| self.records().owner(name).is_some() || self.is_ahead(name) || self.shows_image(name);
            strays.extend(names.filter(|name| !known(name)));
        }
        for stray in strays {
            tracing::info!(snapshot = stray, "removing a snapshot that no container has");
            self.remove_root(&stray).await?;
        }
        Ok(())
    }
}

/// Mounts the layers below the writable one, detached. `scratch` is a free name.
pub(in crate::containerd) fn view(mounts: &[Mount], scratch: &Path) -> io::Result<OwnedFd> {
    match layers(mounts)? {
        Shown::Layers(layers) => overlay::view(&layers, scratch),
        Shown::Other(mounted) => overlay::detached(scratch, |target| Ok(attach_other(mounted, target)?)),
    }
}

/// Refuses an image that would mislead runc: runc creates links in whatever `/dev` is, even a
/// directory of the machine, and would block forever on a FIFO in place of `/etc/passwd`.
pub(in crate::containerd) fn check(root: &OwnedFd) -> Result<(), Refusal> {
    for place in ["dev", "proc", "sys"] {
        let found = fstatat(root, place, AtFlags::AT_SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFLNK) {
            return Err(Refusal::Failed {
                doing: format!("mount /{place}"),
                cause: "it is a link of the image".to_owned(),
            });
        }
    }
    for file in ["etc/group", "etc/passwd"] {
        let found = open_in_root(root, Path::new(file), OFlag::O_PATH).and_then(fstat);
        let kind = found.map(|found| found.st_mode & libc::S_IFMT);
        if kind.is_ok_and(|kind| kind != libc::S_IFREG && kind != libc::S_IFDIR) {
            return Err(Refusal::Failed {
                doing: format!("read /{file}"),
                cause: "it is no regular file".to_owned(),
            });
        }
    }
    Ok(())
}

/// Creates the image's volumes in a container's own root; `root` is the image's. Returns their
/// paths. `scratch` is a free name.
pub(in crate::containerd) fn volumes(
    root: &OwnedFd,
    mounts: &[Mount],
    scratch: &Path,
    wanted: &[PathBuf],
) -> Result<Vec<PathBuf>, Refusal> {
    let seen = path(root);
    let places = declared::places(&seen, wanted)?;
    if places.iter().all(|place| declared::within(&seen, place).is_dir()) {
        return Ok(places);
    }
    let failed = |error: io::Error| Refusal::failed("make the image's volumes", &error);
    let own = own(mounts, scratch).map_err(failed)?;
    declared::make(&path(&own), &places, None)?;
    drop(own);
    forget_promise(mounts).map_err(failed)?;
    Ok(places)
}

/// Path of an open directory.
fn path(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Mounts a container's own root writable, detached.
fn own(mounts: &[Mount], scratch: &Path) -> io::Result<OwnedFd> {
    let (Shown::Layers(layers), [mounted]) = (layers(mounts)?, mounts) else {
        return overlay::detached(scratch, |target| {
            let [mounted] = mounts else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            Ok(attach_as(mounted, MsFlags::empty(), target)?)
        });
    };
    if let (Some(upper), Some(work)) = (option(mounted, "upperdir="), option(mounted, "workdir=")) {
        let (upper, work) = (Path::new(upper), Path::new(work));
        return overlay::open_writable(&layers, Writable { upper, work }, scratch);
    }
    // A directory of this container only.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(Path::new(&mounted.source), flags, Mode::empty())?)
}

fn option<'a>(mounted: &'a Mount, key: &str) -> Option<&'a str> {
    mounted.options.iter().find_map(|option| option.strip_prefix(key))
}

/// Allows the kernel to mount a "volatile" overlay again: the machine has not crashed since.
fn forget_promise(mounts: &[Mount]) -> io::Result<()> {
    let Some(work) = mounts.iter().find_map(|mounted| option(mounted, "workdir=")) else {
        return Ok(());
    };
    match fs::remove_dir_all(Path::new(work).join("work/incompat")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Has runc bind each volume over itself before all mounts of the pod, so that a read-only root
/// leaves it writable. No mount yet can redirect runc elsewhere.
pub(in crate::containerd) fn keep_open(config: &mut Spec, volumes: &[PathBuf]) {
    let mut mounts = config.mounts().clone().unwrap_or_default();
    let first = mounts.iter().position(|mount| mount.typ().as_deref() == Some("bind"));
    let own = volumes.iter().map(|place| {
        let mut mount = Bound::default();
        mount
            .set_destination(place.clone())
            .set_typ(Some("bind".to_owned()))
            // runc resolves a relative source from the bundle directory.
            .set_source(Some(declared::within(Path::new("rootfs"), place)))
            .set_options(Some(["bind", "rw", "rprivate"].map(str::to_owned).to_vec()));
        mount
    });
    let first = first.unwrap_or(mounts.len());
    mounts.splice(first..first, own);
    config.set_mounts(Some(mounts));
}

/// Content of mounts.
enum Shown<'a> {
    /// Directories, lowest first.
    Layers(Vec<PathBuf>),
    /// A mount whose content only the kernel knows.
    Other(&'a Mount),
}

fn layers(mounts: &[Mount]) -> io::Result<Shown<'_>> {
    let [mounted] = mounts else {
        let text = format!("{} mounts", mounts.len());
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    };
    let lower = option(mounted, "lowerdir=");
    Ok(match (mounted.r#type.as_str(), lower) {
        ("bind" | "rbind", _) => Shown::Layers(vec![PathBuf::from(&mounted.source)]),
        ("overlay", Some(lower)) => Shown::Layers(lower.rsplit(':').map(PathBuf::from).collect()),
        (_, _) => Shown::Other(mounted),
    })
}

fn attach_other(mounted: &Mount, target: &Path) -> Result<(), nix::Error> {
    attach_as(mounted, MsFlags::MS_RDONLY, target)
}

fn attach_as(mounted: &Mount, flags: MsFlags, target: &Path) -> Result<(), nix::Error> {
    let options = mounted.options.iter().map(String::as_str);
    let options: Vec<&str> = options.filter(|option| !matches!(*option, "ro" | "rw")).collect();
    mount(
        Some(mounted.source.as_str()),
        target,
        Some(mounted.r#type.as_str()),
        flags,
        Some(options.join(",").as_str()),
    )
}

/// Mounts the layers below the writable one, read-only.
pub(in crate::containerd) fn attach_fixed(mounts: &[Mount], target: &Path) -> io::Result<()> {
    match layers(mounts)? {
        Shown::Layers(layers) => overlay::attach_fixed(&layers, target),
        Shown::Other(mounted) => Ok(attach_other(mounted, target)?),
    }
}

/// Adapts the mounts to a container. With a label, all its files have it.
pub(super) fn for_task(mut mounts: Vec<Mount>, label: Option<&str>) -> Vec<Mount> {
    // A container's writable layer is not needed after a crash of the machine, so unmounting need
    // not sync it.
    for mounted in &mut mounts {
        if mounted.r#type == "overlay" && overlay::can_be_volatile() {
            mounted.options.push("volatile".to_owned());
        }
        mounted.options.extend(label.map(label::quoted));
    }
    mounts
}
