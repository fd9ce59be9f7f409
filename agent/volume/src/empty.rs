//! `emptyDir` volumes.

use std::io;
use std::path::Path;

use agent_plan::resources;
use agent_plan::volume::hugepages;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, PodSpec};
use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, chown};

use crate::{Error, io_error, make_directory, memory, set_mode, subpath};

/// Creates an `emptyDir`. It gets its final path when it is complete: after a crash, the next
/// attempt removes the remains.
pub(crate) fn make(
    directory: &Path,
    volume: &EmptyDirVolumeSource,
    group: Option<Gid>,
    pod: &Pod,
    allocatable: Option<i64>,
) -> Result<(), Error> {
    let medium = volume.medium.as_deref().unwrap_or_default();
    if medium == "Memory" {
        let size = in_memory(volume, pod, allocatable);
        return mount_dir(directory, "tmpfs", &options(size, group, 0o1777));
    }
    if let Some(spec) = pod.spec.as_ref().filter(|_| hugepages::is_medium(medium)) {
        return huge_dir(directory, volume, group, (medium, spec));
    }
    if directory.exists() {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(Error::Name(directory.display().to_string()));
    };
    make_directory(parent)?;
    // Names of volumes do not begin with a dot.
    let draft = parent.join(format!(".{}", name.to_string_lossy()));
    match std::fs::remove_dir(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &draft, error)),
        Ok(()) | Err(_) => {}
    }
    make_directory(&draft)?;
    if group.is_some() {
        chown(&draft, None, group).map_err(|error| io_error("chown", &draft, error))?;
    }
    set_mode(&draft, mode(group))?;
    std::fs::rename(&draft, directory).map_err(|error| io_error("rename", &draft, error))
}

/// Mode of a volume that containers write to.
pub(crate) fn mode(group: Option<Gid>) -> u32 {
    0o777 | group_bits(group)
}

/// Permission bits for the pod's group (`pkg/volume/volume_linux.go`).
fn group_bits(group: Option<Gid>) -> u32 {
    if group.is_some() { 0o2770 } else { 0 }
}

fn size_limit(volume: &EmptyDirVolumeSource) -> Option<i64> {
    let size = volume.size_limit.as_ref();
    size.and_then(|size| resources::units(&size.0)).filter(|size| *size > 0)
}

/// Size limit of a volume in memory: the smallest of its own limit, the pod's memory limit and the
/// node's memory. Without any of them, the kernel's default.
fn in_memory(volume: &EmptyDirVolumeSource, pod: &Pod, allocatable: Option<i64>) -> Option<i64> {
    let pods = pod.spec.as_ref().and_then(|spec| resources::pod_limits(spec).memory);
    let all = [size_limit(volume), pods, allocatable];
    all.into_iter().flatten().filter(|size| *size > 0).min()
}

/// Mounts a tmpfs with its owner, mode and size. The kubelet (`pkg/volume/emptydir`) sets no mode:
/// it is the file system's default, to which the group's bits are added.
fn options(size: Option<i64>, group: Option<Gid>, own: u32) -> Vec<String> {
    let mut options = vec![format!("mode={:o}", own | group_bits(group))];
    options.extend(group.map(|group| format!("gid={group}")));
    options.extend(size.map(|size| format!("size={size}")));
    options
}

fn huge_dir(
    directory: &Path,
    volume: &EmptyDirVolumeSource,
    group: Option<Gid>,
    (medium, spec): (&str, &PodSpec),
) -> Result<(), Error> {
    let size = hugepages::page_size(medium, spec).map_err(|unusable| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, unusable);
        io_error("mount huge pages at", directory, source)
    })?;
    let own = 0o755;
    let mut options = options(size_limit(volume), group, own);
    options.push(format!("pagesize={size}"));
    mount_dir(directory, "hugetlbfs", &options)?;
    // tmpfs does not accept a set-group-ID bit in its mode option.
    set_mode(directory, own | group_bits(group))
}

fn mount_dir(directory: &Path, kind: &'static str, options: &[String]) -> Result<(), Error> {
    make_directory(directory)?;
    if subpath::is_mounted(directory).map_err(|error| io_error("find the mount at", directory, error))? {
        return Ok(());
    }
    let options = options.join(",");
    let mounted = if kind == "tmpfs" {
        memory::mount_tmpfs(directory, &options)
    } else {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(kind), directory, Some(kind), flags, Some(options.as_str()))
    };
    mounted.map_err(|error| io_error("mount a file system in memory at", directory, error))
}
