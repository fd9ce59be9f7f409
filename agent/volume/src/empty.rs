//! Volumes that begin empty.

use std::io;
use std::path::Path;

use agent_plan::resources;
use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, chown};

use crate::{Error, io_error, make_directory, set_mode, subpath};

/// Makes an emptyDir. One that stands at its path is whole: a crash while it is made leaves only what the next attempt removes.
pub(crate) fn make(directory: &Path, volume: &EmptyDirVolumeSource, group: Option<Gid>) -> Result<(), Error> {
    if volume.medium.as_deref() == Some("Memory") {
        return memory_dir(directory, volume, group);
    }
    if directory.exists() {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(Error::Name(directory.display().to_string()));
    };
    make_directory(parent)?;
    // No volume has a name that begins with a dot.
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

/// The mode of a volume that containers write to.
pub(crate) fn mode(group: Option<Gid>) -> u32 {
    if group.is_some() { 0o2777 } else { 0o777 }
}

/// The mount gives owner, mode and size at once.
fn memory_dir(directory: &Path, volume: &EmptyDirVolumeSource, group: Option<Gid>) -> Result<(), Error> {
    make_directory(directory)?;
    if subpath::is_mounted(directory).map_err(|error| io_error("find the mount at", directory, error))? {
        return Ok(());
    }
    let size = volume
        .size_limit
        .as_ref()
        .and_then(|size| resources::units(&size.0))
        .filter(|size| *size > 0);
    let mut options = vec![format!("mode={:o}", mode(group))];
    options.extend(group.map(|group| format!("gid={group}")));
    options.extend(size.map(|size| format!("size={size}")));
    let options = options.join(",");
    mount(
        Some("tmpfs"),
        directory,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(options.as_str()),
    )
    .map_err(|error| io_error("mount tmpfs at", directory, error))
}
