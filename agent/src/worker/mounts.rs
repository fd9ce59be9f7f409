//! What a container finds in its file system besides its image.

use std::path::PathBuf;

use agent_plan::{oci, pods};
use k8s_openapi::api::core::v1::Container;

use super::prepare::create_directories;
use super::start::{Failure, Plan};

/// Volumes and the files that every container gets.
pub(super) fn mounts(
    plan: &Plan,
    container: &Container,
    variables: &[(String, String)],
) -> Result<Vec<oci::Mount>, Failure> {
    let directory = plan.context.pod_directory(pods::uid(&plan.pod));
    let volumes = plan.context.volumes.mounts(&plan.pod, container, variables);
    let mut mounts = volumes.map_err(|error| Failure::configuration(image::chain(&error)))?;
    for file in ["hosts", "hostname", "resolv.conf"] {
        let destination = format!("/etc/{file}");
        if !mounts.iter().any(|mount| mount.destination == destination) {
            let source = directory.join("etc").join(file);
            mounts.push(oci::Mount {
                source,
                destination,
                read_only: false,
                follows_node: false,
            });
        }
    }
    let log = termination_log(&directory, &container.name, plan.attempt);
    let made = log.parent().map_or(Ok(()), create_directories).and_then(|()| {
        std::fs::write(&log, "")?;
        std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666))
    });
    made.map_err(|error| Failure::creation(error.to_string()))?;
    let destination = container
        .termination_message_path
        .clone()
        .unwrap_or_else(|| "/dev/termination-log".to_owned());
    mounts.push(oci::Mount {
        source: log,
        destination,
        read_only: false,
        follows_node: false,
    });
    Ok(mounts)
}

/// Where an instance's termination message lands.
pub(super) fn termination_log(pod_directory: &std::path::Path, container: &str, attempt: u32) -> PathBuf {
    pod_directory
        .join("containers")
        .join(container)
        .join(attempt.to_string())
}
