//! Ephemeral containers: added to a running pod for debugging.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

use crate::value::invalid::Invalid;
use crate::workload::validation::{newly, pod_spec};

const FIELD: &str = "spec.ephemeralContainers";

/// Converts an ephemeral container to a regular one; the target container is dropped.
pub fn as_container(own: &EphemeralContainer) -> Container {
    let own = own.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        lifecycle: own.lifecycle,
        liveness_probe: own.liveness_probe,
        name: own.name,
        ports: own.ports,
        readiness_probe: own.readiness_probe,
        resize_policy: own.resize_policy,
        resources: own.resources,
        restart_policy: own.restart_policy,
        restart_policy_rules: own.restart_policy_rules,
        security_context: own.security_context,
        startup_probe: own.startup_probe,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
    }
}

/// Inverse of [`as_container`].
pub fn from_container(container: Container, target: Option<String>) -> EphemeralContainer {
    EphemeralContainer {
        args: container.args,
        command: container.command,
        env: container.env,
        env_from: container.env_from,
        image: container.image,
        image_pull_policy: container.image_pull_policy,
        lifecycle: container.lifecycle,
        liveness_probe: container.liveness_probe,
        name: container.name,
        ports: container.ports,
        readiness_probe: container.readiness_probe,
        resize_policy: container.resize_policy,
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        security_context: container.security_context,
        startup_probe: container.startup_probe,
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        target_container_name: target,
        termination_message_path: container.termination_message_path,
        termination_message_policy: container.termination_message_policy,
        tty: container.tty,
        volume_devices: container.volume_devices,
        volume_mounts: container.volume_mounts,
        working_dir: container.working_dir,
    }
}

/// Updates through `ephemeralcontainers`: everything else of the pod is kept.
pub fn update(new: &mut Pod, old: &Pod) -> Vec<Invalid> {
    let wanted = new.spec.take().and_then(|spec| spec.ephemeral_containers);
    let managed = new.metadata.managed_fields.take();
    *new = old.clone();
    new.metadata.managed_fields = managed;
    let spec = new.spec.get_or_insert_default();
    spec.ephemeral_containers = wanted.filter(|wanted| !wanted.is_empty());
    crate::workload::pod::defaults::set_pod_defaults(spec);
    if new.spec == old.spec {
        return Vec::new();
    }
    new.metadata.generation = new.metadata.generation.map(|generation| generation + 1);
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else {
        return vec![Invalid::required("spec", "")];
    };
    let mut errors = newly(pod_spec::validate(new, "spec"), || pod_spec::validate(old, "spec"));
    errors.extend(crate::workload::pod::unsupported(new));
    let list = new.ephemeral_containers.as_deref().unwrap_or_default();
    for known in old.ephemeral_containers.iter().flatten() {
        match list.iter().find(|own| own.name == known.name) {
            None => {
                let detail = format!("existing ephemeral containers {:?} may not be removed\n", known.name);
                errors.push(Invalid::forbidden(FIELD, detail));
            }
            Some(own) if own != known => {
                let detail = format!("existing ephemeral containers {:?} may not be changed\n", known.name);
                errors.push(Invalid::forbidden(FIELD, detail));
            }
            Some(_) => {}
        }
    }
    errors
}
