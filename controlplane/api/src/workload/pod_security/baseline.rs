//! Checks of `baseline`, sorted by upstream's IDs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{SELinuxOptions, WindowsSecurityContextOptions};

use super::{Check, Finding, Pod, containers, finding, host, plural, quoted, setters, sorted};

/// Sorted by ID.
pub(super) const CHECKS: &[Check] = &[
    Check::new("appArmorProfile", 0, app_armor),
    Check::new("capabilities_baseline", 0, capabilities),
    Check::new("hostNamespaces", 0, host::host_namespaces),
    Check::new("hostPathVolumes", 0, host::host_paths),
    Check::new("hostPorts", 0, host::host_ports),
    Check::new("hostProbesAndHostLifecycle", 34, host::hosts),
    Check::new("privileged", 0, privileged),
    Check::new("procMount", 0, proc_mount),
    Check::new("seLinuxOptions", 0, se_linux),
    Check::new("seccompProfile_baseline", 0, seccomp),
    Check::new("sysctls", 0, sysctls),
    Check::new("windowsHostProcess", 0, windows_host_process),
];

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Safe sysctls, and the version since which they are safe.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

fn app_armor(pod: &Pod<'_>) -> Option<Finding> {
    let is_bad = |kind: &str| !matches!(kind, "" | "RuntimeDefault" | "Localhost");
    let own = pod.context().and_then(|context| context.app_armor_profile.as_ref());
    let own = own.map(|profile| profile.type_.as_str()).filter(|kind| is_bad(kind));
    let kind_of = |context: Option<&k8s_openapi::api::core::v1::SecurityContext>| {
        let profile = context.and_then(|context| context.app_armor_profile.clone());
        profile.map(|profile| profile.type_).filter(|kind| is_bad(kind))
    };
    let names = pod.named(|container| kind_of(container.context).is_some());
    let kinds: BTreeSet<String> = pod
        .containers()
        .filter_map(|container| kind_of(container.context))
        .chain(own.map(str::to_owned))
        .collect();
    let annotations = pod.metadata.annotations.iter().flatten().filter(|(name, value)| {
        let allowed = value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/");
        name.starts_with(APP_ARMOR) && !allowed
    });
    let mut parts: Vec<String> = annotations.map(|(name, value)| format!("{name}={value:?}")).collect();
    let count = parts.len() + kinds.len();
    if let Some(setters) = setters(own.is_some(), &names) {
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        parts.push(format!(
            "{setters} must not set AppArmor profile type to {}",
            quoted(&kinds)
        ));
    }
    let reason = plural(count, "forbidden AppArmor profile", "forbidden AppArmor profiles");
    (!parts.is_empty()).then(|| finding(reason, parts.join(", ")))
}

fn capabilities(pod: &Pod<'_>) -> Option<Finding> {
    let added = |container: &super::Contained<'_>| -> Vec<String> {
        let added = container
            .capabilities()
            .and_then(|capabilities| capabilities.add.clone());
        let added = added.into_iter().flatten();
        added
            .filter(|capability| !CAPABILITIES.contains(&capability.as_str()))
            .collect()
    };
    let names = pod.named(|container| !added(container).is_empty());
    let bad: Vec<String> = pod.containers().flat_map(|container| added(&container)).collect();
    (!names.is_empty()).then(|| {
        let bad = sorted(bad.iter().map(String::as_str));
        let detail = format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&names),
            quoted(&bad)
        );
        finding("non-default capabilities", detail)
    })
}

fn privileged(pod: &Pod<'_>) -> Option<Finding> {
    let names = pod.named(|container| {
        container
            .context
            .is_some_and(|context| context.privileged == Some(true))
    });
    (!names.is_empty()).then(|| {
        let detail = format!("{} must not set securityContext.privileged=true", containers(&names));
        finding("privileged", detail)
    })
}

fn proc_mount(pod: &Pod<'_>) -> Option<Finding> {
    if pod.has_own_users() {
        None
    } else {
        proc_mount_always(pod)
    }
}

pub(super) fn proc_mount_always(pod: &Pod<'_>) -> Option<Finding> {
    let mount = |context: Option<&k8s_openapi::api::core::v1::SecurityContext>| {
        let mount = context.and_then(|context| context.proc_mount.clone());
        mount.filter(|mount| mount != "Default")
    };
    let names = pod.named(|container| mount(container.context).is_some());
    let kinds: Vec<String> = pod
        .containers()
        .filter_map(|container| mount(container.context))
        .collect();
    (!names.is_empty()).then(|| {
        let kinds = sorted(kinds.iter().map(String::as_str));
        let detail = format!(
            "{} must not set securityContext.procMount to {}",
            containers(&names),
            quoted(&kinds)
        );
        finding("procMount", detail)
    })
}

fn se_linux(pod: &Pod<'_>) -> Option<Finding> {
    let is_good_type = |kind: &str| {
        let known = ["", "container_t", "container_init_t", "container_kvm_t"].contains(&kind);
        known || (kind == "container_engine_t" && pod.version.reaches(31))
    };
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let is_bad = |options: &SELinuxOptions| {
        let kind = options.type_.as_deref().unwrap_or_default();
        !is_good_type(kind) || is_set(&options.user) || is_set(&options.role)
    };
    let own = pod.context().and_then(|context| context.se_linux_options.as_ref());
    let own = own.filter(|options| is_bad(options));
    let contained = |container: &super::Contained<'_>| {
        let options = container.context.and_then(|context| context.se_linux_options.clone());
        options.filter(|options| is_bad(options))
    };
    let names = pod.named(|container| contained(container).is_some());
    let setters = setters(own.is_some(), &names)?;
    let all: Vec<SELinuxOptions> = pod.containers().filter_map(|container| contained(&container)).collect();
    let all: Vec<&SELinuxOptions> = own.into_iter().chain(&all).collect();
    let kinds = all.iter().filter_map(|options| options.type_.as_deref());
    let kinds = sorted(kinds.filter(|kind| !is_good_type(kind)));
    let mut parts = Vec::new();
    if !kinds.is_empty() {
        parts.push(format!("{} {}", plural(kinds.len(), "type", "types"), quoted(&kinds)));
    }
    if all.iter().any(|options| is_set(&options.user)) {
        parts.push("user may not be set".to_owned());
    }
    if all.iter().any(|options| is_set(&options.role)) {
        parts.push("role may not be set".to_owned());
    }
    let detail = format!(
        "{setters} set forbidden securityContext.seLinuxOptions: {}",
        parts.join("; ")
    );
    Some(finding("seLinuxOptions", detail))
}

/// True if a seccomp profile removes the runtime's protection.
pub(super) fn is_bad_profile(kind: &str) -> bool {
    !matches!(kind, "RuntimeDefault" | "Localhost")
}

/// Checks the seccomp annotations, which predate the fields.
fn seccomp_annotations(pod: &Pod<'_>) -> Option<Finding> {
    let own = pod
        .containers()
        .map(|container| format!("container.{SECCOMP}{}", container.name));
    let names: BTreeSet<String> = own.chain([format!("{SECCOMP}pod")]).collect();
    let annotations = pod.metadata.annotations.iter().flatten();
    let bad = annotations.filter(|(name, value)| {
        let allowed = matches!(value.as_str(), "runtime/default" | "docker/default") || value.starts_with("localhost/");
        names.contains(*name) && !allowed
    });
    let bad: Vec<String> = bad.map(|(name, value)| format!("{name}={value:?}")).collect();
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "forbidden {} {}",
            plural(bad.len(), "annotation", "annotations"),
            bad.join(", ")
        );
        finding("seccompProfile", detail)
    })
}

/// Checks for seccomp profiles that are not allowed.
pub(super) fn seccomp(pod: &Pod<'_>) -> Option<Finding> {
    if !pod.version.reaches(19) {
        return seccomp_annotations(pod);
    }
    let own = pod.context().and_then(|context| context.seccomp_profile.as_ref());
    let own = own
        .map(|profile| profile.type_.as_str())
        .filter(|kind| is_bad_profile(kind));
    let kind_of = |container: &super::Contained<'_>| {
        let profile = container.context.and_then(|context| context.seccomp_profile.as_ref());
        profile
            .map(|profile| profile.type_.clone())
            .filter(|kind| is_bad_profile(kind))
    };
    let names = pod.named(|container| kind_of(container).is_some());
    let setters = setters(own.is_some(), &names)?;
    let kinds: Vec<String> = pod.containers().filter_map(|container| kind_of(&container)).collect();
    let kinds = sorted(kinds.iter().map(String::as_str).chain(own));
    let detail = format!(
        "{setters} must not set securityContext.seccompProfile.type to {}",
        quoted(&kinds)
    );
    Some(finding("seccompProfile", detail))
}

fn sysctls(pod: &Pod<'_>) -> Option<Finding> {
    let sysctls = pod
        .context()
        .into_iter()
        .flat_map(|context| context.sysctls.iter().flatten());
    let bad: Vec<&str> = sysctls
        .map(|sysctl| sysctl.name.as_str())
        .filter(|name| {
            !SYSCTLS
                .iter()
                .any(|(own, since)| own == name && pod.version.reaches(*since))
        })
        .collect();
    (!bad.is_empty()).then(|| finding("forbidden sysctls", bad.join(", ")))
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Finding> {
    let is_host = |options: Option<&WindowsSecurityContextOptions>| {
        options.is_some_and(|options| options.host_process == Some(true))
    };
    let own = pod.context();
    let own = is_host(own.and_then(|context| context.windows_options.as_ref()));
    let names = pod.named(|container| is_host(container.context.and_then(|context| context.windows_options.as_ref())));
    let setters = setters(own, &names)?;
    let detail = format!("{setters} must not set securityContext.windowsOptions.hostProcess=true");
    Some(finding("hostProcess", detail))
}
