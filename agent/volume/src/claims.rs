//! Volumes of persistent volume claims: the storage is bind-mounted to a directory of the pod,
//! where a restarted agent finds it.

mod device;
mod nfs;
mod program;
pub(crate) mod users;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use agent_plan::container::environment::Sources;
use agent_plan::pod::pods;
use agent_plan::volume::claims::{Backing, Place};
use k8s_openapi::api::core::v1::{LocalVolumeSource, Pod, Volume};
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount as bind};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::tree::ownership;
use crate::{Error, host_path, io_error, make_directory, subpath};

/// Directory below a pod's directory with an empty file for each claim whose files get `SELinux`
/// labels.
const LABELLED: &str = "labelled";
/// Directory below a pod's directory with the groups of its claims, each in a file.
const GROUPS: &str = "groups";
/// Directory below a pod's directory with an empty file for each claim that is not mounted with its
/// options yet.
const RESTRICTING: &str = "restricting";
/// Directory below a pod's directory with a link to the block device of each claim that is one, in a
/// directory of the machine's boot: in the next one, the numbers are other devices'.
const DEVICES: &str = "devices";
/// Why a volume of one pod is not another's.
const TAKEN: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
/// Directory of the mount points in a pod's directory.
pub(crate) const DIRECTORY: &str = "claims";

/// Devices and inodes that are being mounted, with the number of pods. The lock is never held
/// during file system access, which may hang.
pub(crate) type Claiming = Mutex<BTreeMap<(u64, u64), usize>>;

/// Reservation by a pod that is about to mount a claim; later pods count it among the users.
struct Reserved<'a> {
    claiming: &'a Claiming,
    place: (u64, u64),
}

impl<'a> Reserved<'a> {
    /// Returns the number of earlier reservations.
    fn new(claiming: &'a Claiming, place: (u64, u64)) -> (Self, usize) {
        let mut all = claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(place).or_default();
        let before = *count;
        *count += 1;
        (Self { claiming, place }, before)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut all = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.place) {
            *count -= 1;
        }
        all.retain(|_, count| *count > 0);
    }
}

/// Bind-mounts the storage of a claim at `target`, once.
pub(crate) fn mount(
    root: &Path,
    claiming: &Claiming,
    target: &Path,
    pod: &Pod,
    volume: &Volume,
    sources: &Sources,
) -> Result<(), Error> {
    if is_mounted(target)? {
        return Ok(());
    }
    let backing = sources
        .claims
        .get(&volume.name)
        .ok_or_else(|| Error::Unsupported(volume.name.clone()))?;
    if let Some(group) = backing.group {
        write_note(target, GROUPS, &group.to_string())?;
    }
    if backing.block {
        return link(target, backing);
    }
    if let Place::Nfs(source) = &backing.place {
        let mounted =
            make_directory(target).map(|()| nfs::mount(target, &backing.options, source, is_read_only(volume)))?;
        return mounted.map_err(|why| unmade(target, backing, "SetUp", &why));
    }
    let source = open(backing)?;
    let found = source
        .metadata()
        .map_err(|error| io_error("look at", &path_of(&backing.place), error))?;
    if let Place::Local(local) = &backing.place
        && !found.is_dir()
    {
        if found.file_type().is_block_device() {
            return mount_device(root, target, pod, volume, (backing, local));
        }
        let why = "only directory and block device are supported";
        return Err(failed(backing, "MountDevice", why));
    }
    // Held until it is mounted: of two concurrent pods, one sees the other's reservation here, or
    // its mount.
    let (_reserved, coming) = Reserved::new(claiming, (found.dev(), found.ino()));
    let mounted = |besides| users::count(root, &source, besides).map_err(|error| io_error("read", root, error));
    // The pod's own mounts do not count: several of its volumes may be of one claim.
    let others = mounted(Some(pods::uid(pod)))? + coming;
    if backing.exclusive && others > 0 {
        return Err(failed(backing, "SetUp", TAKEN));
    }
    let written = !is_read_only(volume);
    let owned = match backing.place {
        Place::HostPath(_) | Place::Nfs(_) => false,
        // The ownership of files that are in use is not changed.
        Place::Local(_) => written && others == 0 && mounted(None)? == 0,
        Place::Published { grouped, .. } => grouped,
    };
    if owned {
        ownership::give(&source, pod).map_err(|error| io_error("chown", &path_of(&backing.place), error))?;
    }
    if !matches!(backing.place, Place::HostPath(_)) && written {
        write_note(target, LABELLED, "")?;
    }
    let restricted = flags(&backing.options);
    unbind(target, restricted.is_empty())?;
    make_target(target, found.is_dir())?;
    let from = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    // Options are those of one mount: what is mounted below it stays away, as with a kubelet.
    let below = if restricted.is_empty() {
        MsFlags::MS_REC
    } else {
        MsFlags::empty()
    };
    let flags = MsFlags::MS_BIND | below;
    bind(Some(&from), target, None::<&str>, flags, None::<&str>).map_err(|error| io_error("bind to", target, error))?;
    if restricted.is_empty() {
        return Ok(());
    }
    restrict(target, restricted).map_err(|error| io_error("set the mount options of", target, error))
}

/// Message of a failed step (`GenerateError`,
/// `pkg/volume/util/operationexecutor/operation_executor.go`).
fn failed(backing: &Backing, step: &str, why: &str) -> Error {
    Error::Claim {
        problem: format!("MountVolume.{step} failed for volume {:?} : {why}", backing.volume),
    }
}

/// The same of a mount that was not made; its mount point is removed.
fn unmade(target: &Path, backing: &Backing, step: &str, why: &str) -> Error {
    fs::remove_dir(target).ok();
    failed(backing, step, why)
}

/// Mounts the file system of a block device for a pod.
fn mount_device(
    root: &Path,
    target: &Path,
    pod: &Pod,
    volume: &Volume,
    (backing, local): (&Backing, &LocalVolumeSource),
) -> Result<(), Error> {
    let read_only = is_read_only(volume);
    make_directory(target)?;
    device::mount(target, &backing.options, local, read_only).map_err(|why| {
        let (disk, kind) = (&local.path, local.fs_type.as_deref().unwrap_or_default());
        let place = target.display();
        let why = format!("local: failed to mount device {disk} at {place} (fstype: {kind}), error {why}");
        unmade(target, backing, "MountDevice", &why)
    })?;
    let owned = || {
        let source = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_PATH.bits())
            .open(target)
            .map_err(|error| io_error("open", target, error))?;
        let others =
            users::count(root, &source, Some(pods::uid(pod))).map_err(|error| io_error("read", root, error))?;
        if backing.exclusive && others > 0 {
            return Err(failed(backing, "SetUp", TAKEN));
        }
        if !read_only && others == 0 {
            ownership::give(&source, pod).map_err(|error| io_error("chown", target, error))?;
        }
        if read_only {
            Ok(())
        } else {
            write_note(target, LABELLED, "")
        }
    };
    owned().inspect_err(|_| {
        // The next attempt begins anew.
        subpath::unmount(target).ok();
    })
}

/// True if the pod wants the volume read-only.
fn is_read_only(volume: &Volume) -> bool {
    let (claim, csi, nfs) = (&volume.persistent_volume_claim, &volume.csi, &volume.nfs);
    let wanted = claim.as_ref().and_then(|claim| claim.read_only);
    let wanted = wanted.or(csi.as_ref().and_then(|csi| csi.read_only));
    wanted.or(nfs.as_ref().and_then(|nfs| nfs.read_only)) == Some(true)
}

/// Link to the block device behind a claim.
pub(crate) fn device_link(target: &Path) -> Option<PathBuf> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    note(target, &format!("{DEVICES}/{}", boot.trim()))
}

/// Records the block device behind a claim.
fn link(target: &Path, backing: &Backing) -> Result<(), Error> {
    let path = path_of(&backing.place);
    let kind = fs::metadata(&path).map_err(|error| io_error("look at", &path, error))?;
    if !kind.file_type().is_block_device() {
        let (volume, path) = (&backing.volume, path.display());
        let problem = format!("MapVolume.MapPodDevice failed for volume {volume:?} : {path} is not a block device");
        return Err(Error::Claim { problem });
    }
    let Some(link) = device_link(target) else {
        return Ok(());
    };
    link.parent().map_or(Ok(()), make_directory)?;
    match symlink(&path, &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io_error("link", &link, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Ends a mount whose options were not set before the agent was killed, and notes that this one's are to come.
fn unbind(target: &Path, is_free: bool) -> Result<(), Error> {
    let begun = note(target, RESTRICTING).filter(|note| note.exists());
    if !is_free {
        write_note(target, RESTRICTING, "")?;
    }
    if begun.is_some() || !is_free {
        subpath::unmount(target).map_err(|error| io_error("unmount", target, error))?;
    }
    match begun.filter(|_| is_free) {
        Some(begun) => fs::remove_file(&begun).map_err(|error| io_error("remove", &begun, error)),
        None => Ok(()),
    }
}

/// True if a claim is mounted with its options, or its block device is known.
pub(crate) fn is_mounted(target: &Path) -> Result<bool, Error> {
    if device_link(target).is_some_and(|link| link.is_symlink()) {
        return Ok(true);
    }
    let is_incomplete = note(target, RESTRICTING).is_some_and(|note| note.exists());
    let mounted = subpath::is_mounted(target).map_err(|error| io_error("find the mount at", target, error))?;
    Ok(mounted && !is_incomplete)
}

/// Flags of mount options. Options of a file system are of no effect on a bind mount, as with `mount(8)`.
fn flags(options: &[String]) -> MsFlags {
    let flags = options.iter().map(|option| match option.as_str() {
        "ro" => MsFlags::MS_RDONLY,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noexec" => MsFlags::MS_NOEXEC,
        "noatime" => MsFlags::MS_NOATIME,
        "nodiratime" => MsFlags::MS_NODIRATIME,
        "relatime" => MsFlags::MS_RELATIME,
        "strictatime" => MsFlags::MS_STRICTATIME,
        _ => MsFlags::empty(),
    });
    flags.fold(MsFlags::empty(), |all, flag| all | flag)
}

/// Adds flags to those of the mount.
fn restrict(target: &Path, more: MsFlags) -> io::Result<()> {
    let own = statvfs(target)?.flags();
    let kept = [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ];
    let kept = kept.into_iter().filter(|(set, _)| own.contains(*set));
    let flags = kept.fold(more | MsFlags::MS_REMOUNT | MsFlags::MS_BIND, |all, (_, flag)| {
        all | flag
    });
    bind(None::<&str>, target, None::<&str>, flags, None::<&str>)?;
    note(target, RESTRICTING).map_or(Ok(()), fs::remove_file)
}

/// Records something about a claim for the starts of containers, also by a later agent.
fn write_note(target: &Path, what: &str, text: &str) -> Result<(), Error> {
    let Some(note) = note(target, what) else { return Ok(()) };
    note.parent().map_or(Ok(()), make_directory)?;
    fs::write(&note, text).map_err(|error| io_error("write", &note, error))
}

fn note(target: &Path, what: &str) -> Option<PathBuf> {
    let pod = target.parent()?.parent()?;
    Some(pod.join(what).join(target.file_name()?))
}

/// True if the files of a claim get the label: those of a `hostPath` volume do not.
pub(crate) fn gets_label(target: &Path) -> bool {
    note(target, LABELLED).is_some_and(|note| note.exists())
}

/// Groups of the claims that are mounted in a pod's directory.
pub(crate) fn groups(pod: &Path) -> Vec<u32> {
    let notes = fs::read_dir(pod.join(GROUPS)).into_iter().flatten().flatten();
    notes
        .filter_map(|note| fs::read_to_string(note.path()).ok()?.parse().ok())
        .collect()
}

fn path_of(place: &Place) -> PathBuf {
    match place {
        Place::HostPath(source) => PathBuf::from(&source.path),
        Place::Nfs(source) => PathBuf::from(&source.path),
        Place::Local(source) => PathBuf::from(&source.path),
        Place::Published { path, .. } => PathBuf::from(path),
    }
}

/// Opens the storage. The opened file is what gets mounted, even if the path changes later.
fn open(backing: &Backing) -> Result<File, Error> {
    let path = path_of(&backing.place);
    match &backing.place {
        Place::HostPath(_) if !backing.options.is_empty() => {
            let problem = format!(
                "MountVolume.MountOptionSupport check failed for volume {:?} : mount options are not supported for this \
                 volume type",
                backing.volume
            );
            return Err(Error::Claim { problem });
        }
        Place::HostPath(source) => host_path::check(&backing.volume, source)?,
        Place::Published { .. } | Place::Nfs(_) => {}
        Place::Local(_) if path.is_absolute() => {}
        Place::Local(_) => {
            let problem = format!(
                "MountVolume.NewMounter initialization failed for volume {:?} : path {:?} is not absolute",
                backing.volume,
                path.display().to_string()
            );
            return Err(Error::Claim { problem });
        }
    }
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_PATH.bits())
        .open(&path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Claim {
            problem: format!(
                "MountVolume.NewMounter initialization failed for volume {:?} : path {:?} does not exist",
                backing.volume,
                path.display().to_string()
            ),
        }),
        opened => opened.map_err(|error| io_error("open", &path, error)),
    }
}

fn make_target(target: &Path, directory: bool) -> Result<(), Error> {
    if directory {
        return make_directory(target);
    }
    if let Some(parent) = target.parent() {
        make_directory(parent)?;
    }
    File::create(target)
        .map(drop)
        .map_err(|error| io_error("create", target, error))
}

/// Removes the mount points of a pod's claims, which are empty when unmounted.
pub(crate) fn remove(pod: &Path, failures: &mut Vec<String>) {
    let directory = pod.join(DIRECTORY);
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => fs::remove_dir(&path),
            Ok(found) if found.len() == 0 => fs::remove_file(&path),
            Ok(_) => Err(io::Error::other("it is not empty")),
            Err(error) => Err(error),
        };
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            failures.push(format!("remove {}: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_counts_those_who_are_mounting() {
        let claiming = Claiming::default();
        let (first, before) = Reserved::new(&claiming, (1, 2));
        assert_eq!(before, 0);
        assert_eq!(Reserved::new(&claiming, (1, 3)).1, 0, "another file");
        let (second, before) = Reserved::new(&claiming, (1, 2));
        assert_eq!(before, 1);
        drop(first);
        assert_eq!(Reserved::new(&claiming, (1, 2)).1, 1, "the second is not done");
        drop(second);
        assert!(claiming.lock().expect("not poisoned").is_empty());
    }
}
