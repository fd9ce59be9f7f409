//! Mount points within read-only volumes: where another volume of the pod is mounted below one with
//! contents from the API, its mount point must exist before that one is mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Pod, VolumeMount};

use super::cleaned;
use crate::payload::Payload;
use crate::{Error, io_error, set_mode};

/// Mount points by the names of the volumes that contain them, relative to these.
pub(crate) type Points = BTreeMap<String, BTreeSet<PathBuf>>;

/// All nested mount points of a pod; below one of them no other is needed.
pub(crate) fn points(pod: &Pod) -> Points {
    let mut found = Points::new();
    let ephemeral = pods::ephemeral_containers(pod)
        .iter()
        .map(|container| &container.volume_mounts);
    for mounts in pods::all_containers(pod)
        .map(|container| &container.volume_mounts)
        .chain(ephemeral)
    {
        collect(mounts.as_deref().unwrap_or_default(), &mut found);
    }
    found
}

fn collect(mounts: &[VolumeMount], found: &mut Points) {
    let all: BTreeSet<PathBuf> = mounts
        .iter()
        .map(|mount| PathBuf::from(cleaned(&mount.mount_path)))
        .collect();
    for mount in mounts {
        let own = PathBuf::from(cleaned(&mount.mount_path));
        // Paths with a common prefix are adjacent.
        let mut last: Option<&Path> = None;
        for other in all.range(own.clone()..).skip(1) {
            let Ok(below) = other.strip_prefix(&own) else { break };
            if last.is_none_or(|last| !other.starts_with(last)) {
                last = Some(other);
                let points = found.entry(mount.name.clone()).or_default();
                points.insert(below.to_owned());
            }
        }
    }
}

/// Creates the mount points of one volume. Names of the payload are skipped: they exist, or will.
pub(crate) fn make(directory: &Path, points: &BTreeSet<PathBuf>, payload: &Payload) -> Result<(), Error> {
    let named = |first: Component<'_>| {
        let mut names = payload.keys().map(Path::new);
        names.any(|name| name.components().next() == Some(first))
    };
    for point in points {
        if point.components().next().is_none_or(named) {
            continue;
        }
        let mut path = directory.to_owned();
        for part in point.components() {
            path.push(part);
            match fs::DirBuilder::new().mode(0o755).create(&path) {
                // A symbolic link is not followed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                        break;
                    }
                }
                Err(error) => return Err(io_error("create", &path, error)),
                // Regardless of the umask.
                Ok(()) => set_mode(&path, 0o755)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::points;

    #[test]
    fn only_the_first_of_what_lies_below_each_other_is_a_point() {
        let pod = serde_json::from_str(
            r#"{"metadata":{},"spec":{"containers":[{"name":"c","volumeMounts":[
                {"name":"config","mountPath":"/etc/app/"},{"name":"a","mountPath":"/etc/app/sub/../data"},
                {"name":"b","mountPath":"/etc/app/data/deep"},{"name":"c","mountPath":"/etc/application"},
                {"name":"d","mountPath":"/etc/app/x/y"}]}]}}"#,
        );
        let found = points(&pod.unwrap());
        let told: Vec<String> = found
            .iter()
            .map(|(name, points)| format!("{name}: {points:?}"))
            .collect();
        assert_eq!(told, [r#"a: {"deep"}"#, r#"config: {"data", "x/y"}"#]);
    }
}
