//! Mounts of a container.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use agent_plan::container::environment::{self, Environment, File, Files};
use agent_plan::container::oci;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Container;

use super::plan::Plan;
use super::unstarted::Failure;
use crate::confined;
use crate::pod::worker::create_directories;
use crate::pod::worker::sandbox::etc;

/// Maximum size of an environment file.
const FILE_BYTES: u64 = 1 << 20;
/// Maximum size of all environment files of a container, which are in memory at the same time.
const FILES_BYTES: usize = 4 << 20;

/// Returns the mounts of volumes and of the files that every container gets.
pub(in crate::pod::worker) fn mounts(
    plan: &Plan,
    container: &Container,
    variables: &Environment,
    images: &BTreeMap<String, PathBuf>,
    label: Option<&str>,
) -> Result<Vec<oci::Mount>, Failure> {
    let directory = plan.context.pod_directory(pods::uid(&plan.pod));
    let volumes = plan.context.volumes.mounts(&plan.pod, container, variables, images);
    let mut mounts = volumes.map_err(|error| {
        if matches!(error, volume::Error::ImagePath { .. }) {
            Failure::creation(image::chain(&error))
        } else {
            Failure::configuration(image::chain(&error))
        }
    })?;
    for mount in &mounts {
        if mount.propagation == oci::Propagation::BothWays {
            let kubelet = &plan.context.config.kubelet_directory;
            if mount.source.starts_with(kubelet) {
                volume::share(kubelet).map_err(|error| Failure::creation(error.to_string()))?;
            }
            must_be_shared(&mount.source).map_err(Failure::creation)?;
        }
    }
    if plan.attempt > 0 {
        etc::renew_hosts(&plan.pod, &directory).map_err(|error| Failure::creation(error.to_string()))?;
    }
    let fixed = container.security_context.as_ref();
    let fixed = fixed.and_then(|context| context.read_only_root_filesystem) == Some(true);
    for file in etc::NAMES {
        let destination = format!("/etc/{file}");
        if !mounts.iter().any(|mount| mount.destination == destination) {
            let source = directory.join("etc").join(file);
            mounts.push(oci::Mount {
                source,
                destination,
                // Same as with containerd: the runtime mounts the other two, the kubelet this one.
                access: if fixed && file != "hosts" {
                    oci::Access::ReadOnly
                } else {
                    oci::Access::ReadWrite
                },
                propagation: oci::Propagation::Private,
                own: true,
                labelled: true,
            });
        }
    }
    let log = termination_log(&directory, &container.name, plan.attempt);
    let made = log.parent().map_or(Ok(()), create_directories).and_then(|()| {
        std::fs::write(&log, "")?;
        std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666))
    });
    made.map_err(|error| Failure::creation(error.to_string()))?;
    let wanted = container.termination_message_path.as_deref();
    let destination = volume::cleaned(wanted.unwrap_or("/dev/termination-log"));
    mounts.push(oci::Mount {
        source: log,
        destination,
        access: oci::Access::ReadWrite,
        propagation: oci::Propagation::Private,
        own: true,
        labelled: true,
    });
    for mount in mounts.iter().filter(|mount| mount.labelled) {
        let labelled = label.map_or(Ok(()), |label| volume::label(&mount.source, label));
        labelled.map_err(|error| Failure::creation(image::chain(&error)))?;
    }
    Ok(mounts)
}

/// Returns the files that the container's environment refers to, which other containers wrote.
pub(in crate::pod::worker) fn files(plan: &Plan, container: &Container) -> Files {
    gather(environment::wanted(container), |volume, path| {
        let volumes = &plan.context.volumes;
        let directory = match volumes.empty_directory(&plan.pod, volume) {
            Ok(Some(directory)) => directory,
            Ok(None) => return File::Absent,
            Err(error) => return File::Unreadable(error.to_string()),
        };
        match confined::below(&directory, path, FILE_BYTES) {
            Ok(text) => File::Text(String::from_utf8_lossy(&text).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => File::Absent,
            Err(error) => File::Unreadable(error.to_string()),
        }
    })
}

/// Reads each file once. After the first one that exceeds the limit, no further file is read.
fn gather<'w>(wanted: impl Iterator<Item = (&'w str, &'w str)>, read: impl Fn(&str, &str) -> File) -> Files {
    let too_long = || {
        let what = "the files of the container's environment variables have more than";
        File::Unreadable(format!("{what} {FILES_BYTES} bytes together"))
    };
    let mut files = Files::new();
    let mut room = FILES_BYTES;
    for (volume, path) in wanted {
        let Entry::Vacant(place) = files.entry((volume.to_owned(), path.to_owned())) else {
            continue;
        };
        let file = if room > 0 { read(volume, path) } else { too_long() };
        let length = if let File::Text(text) = &file { text.len() } else { 0 };
        place.insert(if length <= room { file } else { too_long() });
        room = room.saturating_sub(length);
    }
    files
}

/// Fails unless the mount is shared on the node, which bidirectional propagation requires.
fn must_be_shared(source: &Path) -> Result<(), String> {
    let table = trees::mounts::read().map_err(|error| error.to_string())?;
    let source = source.canonicalize().map_err(|error| error.to_string())?;
    let above = trees::mounts::parse(&table).filter(|mount| source.starts_with(&mount.point));
    // Of mounts at the same path, the last one is on top.
    match above.max_by_key(|mount| mount.point.as_os_str().len()) {
        Some(found) if !found.shared => Err(format!(
            "failed to generate spec: path {:?} is mounted on {:?} but it is not a shared mount",
            source.display().to_string(),
            found.point.display().to_string()
        )),
        Some(_) | None => Ok(()),
    }
}

/// Path of an instance's termination message.
pub(in crate::pod::worker) fn termination_log(pod_directory: &Path, container: &str, attempt: u32) -> PathBuf {
    pod_directory
        .join("containers")
        .join(container)
        .join(attempt.to_string())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn attack_files_of_variables_are_held_up_to_a_limit() {
        let paths: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let wanted = || paths.iter().flat_map(|path| [("v", path.as_str()); 2]);
        let file = |files: &Files, path: &str| files.get(&("v".to_owned(), path.to_owned())).cloned();
        let reads = Cell::new(0);
        let read = |length: usize| {
            reads.set(reads.get() + 1);
            File::Text("x".repeat(length))
        };
        let files = gather(wanted(), |_, _| read(3 << 19));
        let texts = files.values().filter(|file| matches!(file, File::Text(_)));
        assert_eq!((files.len(), texts.count(), reads.get()), (paths.len(), 2, 3));
        let Some(File::Unreadable(why)) = file(&files, "19999") else {
            panic!("the last one was read");
        };
        assert!(why.ends_with("have more than 4194304 bytes together"), "{why}");
        // Short files are all read, each once for any number of variables.
        reads.set(0);
        let files = gather(wanted(), |_, _| read(7));
        assert_eq!(file(&files, "19999"), Some(File::Text("xxxxxxx".to_owned())));
        assert_eq!(reads.get(), paths.len());
    }
}
