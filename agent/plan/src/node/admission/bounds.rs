//! Bounds on the number of objects in one pod.

use k8s_openapi::api::core::v1::PodSpec;

use super::rejection;
use crate::pod::termination::Rejection;

/// Rejects a pod with more containers, volumes and the like than the node's time, memory and mounts
/// allow.
pub(super) fn too_much(spec: &PodSpec) -> Option<Rejection> {
    const CONTAINERS: usize = 512;
    const PARTS: usize = 1024;
    let all = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mounts = all().flat_map(|container| container.volume_mounts.iter().flatten());
    let parts = mounts.filter(|mount| mount.sub_path.is_some() || mount.sub_path_expr.is_some());
    let why = if all().count() > CONTAINERS {
        format!("more than {CONTAINERS} containers")
    } else if parts.count() > PARTS {
        format!("more than {PARTS} mounts of parts of volumes")
    } else {
        return None;
    };
    Some(rejection("UnexpectedAdmissionError", why))
}
