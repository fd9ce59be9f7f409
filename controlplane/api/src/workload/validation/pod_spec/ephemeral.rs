//! Validation of ephemeral containers.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use crate::value::invalid::Invalid;
use crate::workload::validation::container::{Context, common};

const DETAIL: &str = "cannot be set for an Ephemeral Container";

/// Validates an ephemeral container, in the form of a regular one. It may have no resources of its
/// own.
pub(super) fn container<'a>(
    errors: &mut Vec<Invalid>,
    container: &'a Container,
    path: &str,
    context: &mut Context<'a>,
) {
    common(errors, container, path, context);
    let resources = container.resources.as_ref();
    let resources = resources.is_some_and(|own| own.limits.is_some() || own.requests.is_some() || own.claims.is_some());
    let set = [
        (container.ports.as_ref().is_some_and(|ports| !ports.is_empty()), "ports"),
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe"),
        (container.startup_probe.is_some(), "startupProbe"),
        (container.lifecycle.is_some(), "lifecycle"),
        (resources, "resources"),
        (
            container.resize_policy.as_ref().is_some_and(|own| !own.is_empty()),
            "resizePolicy",
        ),
        (container.restart_policy.is_some(), "restartPolicy"),
        (
            container
                .restart_policy_rules
                .as_ref()
                .is_some_and(|own| !own.is_empty()),
            "restartPolicyRules",
        ),
    ];
    for (_, name) in set.into_iter().filter(|(set, _)| *set) {
        errors.push(Invalid::forbidden(format!("{path}.{name}"), DETAIL));
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        for (part, name) in [(&mount.sub_path, "subPath"), (&mount.sub_path_expr, "subPathExpr")] {
            if part.as_ref().is_some_and(|part| !part.is_empty()) {
                let field = format!("{path}.volumeMounts[{index}].{name}");
                errors.push(Invalid::forbidden(field, DETAIL));
            }
        }
    }
}

/// Validates the target containers.
pub(super) fn targets(errors: &mut Vec<Invalid>, added: &[EphemeralContainer], spec: &PodSpec, path: &str) {
    for (index, own) in added.iter().enumerate() {
        let Some(target) = own.target_container_name.as_deref() else {
            continue;
        };
        let mut known = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        if !known.any(|container| container.name == target) {
            let field = format!("{path}[{index}].targetContainerName");
            errors.push(Invalid::not_found(field, target));
        }
    }
}
