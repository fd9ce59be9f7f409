//! What this node cannot do. A pod that asks for it is refused with a text that names the field, never run without it.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodSpec, Volume};

use crate::observed::Rejection;

/// Settings of the kernel that are the pod's own and harm nobody else.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

/// The first thing about the pod that the node cannot do.
pub fn check(pod: &Pod) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    if let Some(rejection) = sysctls(spec) {
        return Some(rejection);
    }
    let field = pod_field(spec)
        .or_else(|| spec.volumes.iter().flatten().find_map(volume_field))
        .or_else(|| {
            spec.containers
                .iter()
                .find_map(|container| container_field("containers", container, spec))
        })
        .or_else(|| {
            let initial = spec.init_containers.iter().flatten();
            initial
                .into_iter()
                .find_map(|container| container_field("initContainers", container, spec))
        })?;
    Some(Rejection {
        reason: "UnexpectedAdmissionError".to_owned(),
        message: format!("Pod was rejected: this node does not support {field}"),
    })
}

fn sysctls(spec: &PodSpec) -> Option<Rejection> {
    let sysctls = spec.security_context.as_ref()?.sysctls.as_ref()?;
    let bad = sysctls.iter().find(|sysctl| {
        let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, ' ' | '\t' | '-' | ',');
        !SAFE_SYSCTLS.contains(&sysctl.name.as_str())
            || !sysctl.value.chars().all(plain)
            || (spec.host_network == Some(true) && sysctl.name.starts_with("net."))
            || (spec.host_ipc == Some(true) && sysctl.name.starts_with("kernel."))
    })?;
    Some(Rejection {
        reason: "SysctlForbidden".to_owned(),
        message: format!("forbidden sysctl: \"{}\" not allowlisted", bad.name),
    })
}

fn pod_field(spec: &PodSpec) -> Option<String> {
    let context = spec.security_context.as_ref();
    let seccomp = context.and_then(|context| context.seccomp_profile.as_ref());
    let apparmor = context.and_then(|context| context.app_armor_profile.as_ref());
    let fields = [
        (spec.host_users == Some(false), "spec.hostUsers: false"),
        (
            spec.runtime_class_name.as_ref().is_some_and(|name| !name.is_empty()),
            "spec.runtimeClassName",
        ),
        (
            spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
            "spec.resourceClaims",
        ),
        (spec.resources.is_some(), "spec.resources (of the pod as a whole)"),
        (
            spec.os.as_ref().is_some_and(|os| os.name != "linux"),
            "spec.os other than linux",
        ),
        (
            seccomp.is_some_and(|profile| profile.type_ == "Localhost"),
            "spec.securityContext.seccompProfile of type Localhost",
        ),
        (
            apparmor.is_some_and(|profile| profile.type_ == "Localhost"),
            "spec.securityContext.appArmorProfile of type Localhost",
        ),
        (
            context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict"),
            "spec.securityContext.supplementalGroupsPolicy: Strict",
        ),
    ];
    fields
        .into_iter()
        .find(|(unsupported, _)| *unsupported)
        .map(|(_, name)| name.to_owned())
}

fn volume_field(volume: &Volume) -> Option<String> {
    let projected_token = volume.projected.as_ref().is_some_and(|projected| {
        projected.sources.iter().flatten().any(|source| {
            source.service_account_token.is_some()
                || source.cluster_trust_bundle.is_some()
                || source.pod_certificate.is_some()
        })
    });
    if projected_token {
        return Some(format!(
            "volume {}: projected sources other than configMap, secret and downwardAPI",
            volume.name
        ));
    }
    let huge = volume.empty_dir.as_ref().and_then(|volume| volume.medium.as_deref());
    if huge.is_some_and(|medium| !medium.is_empty() && medium != "Memory") {
        return Some(format!("volume {}: emptyDir.medium other than Memory", volume.name));
    }
    let known = volume.empty_dir.is_some()
        || volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some();
    (!known).then(|| {
        format!(
            "volume {}: only emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes",
            volume.name
        )
    })
}

fn container_field(list: &str, container: &Container, spec: &PodSpec) -> Option<String> {
    let context = container.security_context.as_ref();
    let seccomp = context.and_then(|context| context.seccomp_profile.as_ref());
    let apparmor = context.and_then(|context| context.app_armor_profile.as_ref());
    let host_port = spec.host_network != Some(true)
        && container
            .ports
            .iter()
            .flatten()
            .any(|port| port.host_port.is_some_and(|port| port != 0));
    let bidirectional = container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| mount.mount_propagation.as_deref() == Some("Bidirectional"));
    let recursive = container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| mount.recursive_read_only.as_deref() == Some("Enabled"));
    let probes = [
        &container.liveness_probe,
        &container.readiness_probe,
        &container.startup_probe,
    ];
    let hooks = container.lifecycle.as_ref();
    let tcp_hook = |hook: &Option<LifecycleHandler>| hook.as_ref().is_some_and(|hook| hook.tcp_socket.is_some());
    let fields = [
        (
            container
                .volume_devices
                .as_ref()
                .is_some_and(|devices| !devices.is_empty()),
            "volumeDevices",
        ),
        (
            container
                .restart_policy_rules
                .as_ref()
                .is_some_and(|rules| !rules.is_empty()),
            "restartPolicyRules",
        ),
        (host_port, "ports[].hostPort"),
        (bidirectional, "volumeMounts[].mountPropagation: Bidirectional"),
        (recursive, "volumeMounts[].recursiveReadOnly: Enabled"),
        (
            probes.into_iter().flatten().any(|probe| probe.grpc.is_some()),
            "gRPC probes",
        ),
        (
            hooks.is_some_and(|hooks| tcp_hook(&hooks.post_start) || tcp_hook(&hooks.pre_stop)),
            "tcpSocket hooks",
        ),
        (
            context.is_some_and(|context| context.proc_mount.as_deref() == Some("Unmasked")),
            "securityContext.procMount: Unmasked",
        ),
        (
            seccomp.is_some_and(|profile| profile.type_ == "Localhost"),
            "securityContext.seccompProfile of type Localhost",
        ),
        (
            apparmor.is_some_and(|profile| profile.type_ == "Localhost"),
            "securityContext.appArmorProfile of type Localhost",
        ),
    ];
    let found = fields.into_iter().find(|(unsupported, _)| *unsupported);
    found.map(|(_, field)| format!("spec.{list}{{{}}}.{field}", container.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_spec(spec: &str) -> Option<String> {
        let pod = Pod {
            spec: Some(serde_json::from_str(spec).unwrap()),
            ..Pod::default()
        };
        check(&pod).map(|rejection| format!("{}: {}", rejection.reason, rejection.message))
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let plain = r#"{"containers":[{"name":"a"}],"volumes":[{"name":"v","emptyDir":{}}]}"#;
        assert_eq!(check_spec(plain), None);
        for (spec, expected) in [
            (r#"{"containers":[],"hostUsers":false}"#, "spec.hostUsers: false"),
            (
                r#"{"containers":[],"volumes":[{"name":"v","gitRepo":{"repository":"x"}}]}"#,
                "volume v: only emptyDir",
            ),
            (
                r#"{"containers":[],"securityContext":{"sysctls":[{"name":"kernel.shm_rmid_forced","value":"1+kernel.core_pattern=x"}]}}"#,
                "forbidden sysctl",
            ),
        ] {
            let text = check_spec(spec).unwrap();
            assert!(text.contains(expected), "{text}");
        }
    }
}
