//! Validation of OS-specific fields: those only for Windows, and those not for it.

mod windows_user;

use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, SecurityContext, WindowsSecurityContextOptions};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::each;

pub(in crate::workload::validation) const LINUX: &str = "linux";
pub(in crate::workload::validation) const WINDOWS: &str = "windows";
/// Maximum size of a credential spec, in bytes.
const CREDENTIAL_LIMIT: usize = 64 * 1024;

/// Rejects the fields that a pod with this `spec.os` must not set.
pub(super) fn pod(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => errors.push(Invalid::required(format!("{path}.os.name"), "cannot be empty")),
        LINUX => linux(errors, spec, path),
        WINDOWS => windows(errors, spec, path),
        other => errors.push(Invalid::not_supported(format!("{path}.os"), other, &[LINUX, WINDOWS])),
    }
}

fn linux(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.is_some_and(|context| context.windows_options.is_some());
    let of_containers = contexts(spec).filter_map(|(place, context)| {
        let has_some = context.is_some_and(|context| context.windows_options.is_some());
        has_some.then(|| format!("{path}.{place}"))
    });
    let places = of_pod.then(|| path.to_owned()).into_iter().chain(of_containers);
    errors.extend(places.map(|place| {
        let field = format!("{place}.securityContext.windowsOptions");
        Invalid::forbidden(field, "windows options cannot be set for a linux pod")
    }));
}

fn windows(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let nothing = PodSecurityContext::default();
    let own = spec.security_context.as_ref().unwrap_or(&nothing);
    let of_pod = [
        (own.app_armor_profile.is_some(), "securityContext.appArmorProfile"),
        (own.se_linux_options.is_some(), "securityContext.seLinuxOptions"),
        (spec.host_users.is_some(), "hostUsers"),
        (spec.host_pid == Some(true), "hostPID"),
        (spec.host_ipc == Some(true), "hostIPC"),
        (own.seccomp_profile.is_some(), "securityContext.seccompProfile"),
        (own.fs_group.is_some(), "securityContext.fsGroup"),
        (
            own.fs_group_change_policy.is_some(),
            "securityContext.fsGroupChangePolicy",
        ),
        (
            own.sysctls.as_ref().is_some_and(|all| !all.is_empty()),
            "securityContext.sysctls",
        ),
        (spec.share_process_namespace.is_some(), "shareProcessNamespace"),
        (own.run_as_user.is_some(), "securityContext.runAsUser"),
        (own.run_as_group.is_some(), "securityContext.runAsGroup"),
        (own.supplemental_groups.is_some(), "securityContext.supplementalGroups"),
        (
            own.supplemental_groups_policy.is_some(),
            "securityContext.supplementalGroupsPolicy",
        ),
        (
            own.se_linux_change_policy.is_some(),
            "securityContext.seLinuxChangePolicy",
        ),
    ];
    let mut forbid = |field: String| errors.push(Invalid::forbidden(field, "cannot be set for a windows pod"));
    for (_, name) in of_pod.into_iter().filter(|(is_set, _)| *is_set) {
        forbid(format!("{path}.{name}"));
    }
    for (place, context) in contexts(spec) {
        let Some(own) = context else { continue };
        let of_container = [
            (own.app_armor_profile.is_some(), "appArmorProfile"),
            (own.se_linux_options.is_some(), "seLinuxOptions"),
            (own.seccomp_profile.is_some(), "seccompProfile"),
            (own.capabilities.is_some(), "capabilities"),
            (own.read_only_root_filesystem.is_some(), "readOnlyRootFilesystem"),
            (own.privileged.is_some(), "privileged"),
            (own.allow_privilege_escalation.is_some(), "allowPrivilegeEscalation"),
            (own.proc_mount.is_some(), "procMount"),
            (own.run_as_user.is_some(), "runAsUser"),
            (own.run_as_group.is_some(), "runAsGroup"),
        ];
        for (_, name) in of_container.into_iter().filter(|(is_set, _)| *is_set) {
            forbid(format!("{path}.{place}.securityContext.{name}"));
        }
    }
}

/// Paths and security contexts of all containers, in upstream's order.
fn contexts(spec: &PodSpec) -> impl Iterator<Item = (String, Option<&SecurityContext>)> {
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(index, own)| (format!("initContainers[{index}]"), own.security_context.as_ref()));
    let main = spec.containers.iter().enumerate();
    let main = main.map(|(index, own)| (format!("containers[{index}]"), own.security_context.as_ref()));
    let added = spec.ephemeral_containers.iter().flatten().enumerate();
    let added = added.map(|(index, own)| (format!("ephemeralContainers[{index}]"), own.security_context.as_ref()));
    init.chain(main).chain(added)
}

/// Validates the Windows options of a pod or container.
pub(in crate::workload::validation) fn options(
    errors: &mut Vec<Invalid>,
    own: Option<&WindowsSecurityContextOptions>,
    path: &str,
) {
    let Some(own) = own else { return };
    if let Some(name) = &own.gmsa_credential_spec_name {
        let field = format!("{path}.gmsaCredentialSpecName");
        each(errors, &field, name, names::dns1123_subdomain(name));
    }
    let field = format!("{path}.gmsaCredentialSpec");
    match own.gmsa_credential_spec.as_deref() {
        Some("") => {
            let detail = "gmsaCredentialSpec cannot be an empty string";
            errors.push(Invalid::value(field, "", detail));
        }
        Some(text) if text.len() > CREDENTIAL_LIMIT => {
            let detail = "gmsaCredentialSpec size must be under 64 KiB";
            errors.push(Invalid::value(field, text, detail));
        }
        Some(_) | None => {}
    }
    if let Some(name) = own.run_as_user_name.as_deref() {
        let problems = windows_user::problems(name);
        let field = format!("{path}.runAsUserName");
        let invalid = |detail| Invalid::value(field.as_str(), name, detail);
        errors.extend(problems.into_iter().map(invalid));
    }
}

/// Validates `HostProcess` containers: either all containers of a pod or none, and only with host
/// networking.
pub(super) fn host_process(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.windows_options.as_ref()?.host_process);
    let (mut all, mut hosts) = (0, 0);
    for (place, context) in contexts(spec) {
        all += 1;
        let own = context.and_then(|context| context.windows_options.as_ref()?.host_process);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let field = format!("{path}.{place}.securityContext.windowsOptions.hostProcess");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            errors.push(Invalid::value(field, own, detail));
        }
        hosts += i32::from(own.or(of_pod) == Some(true));
    }
    if hosts == 0 {
        return;
    }
    if hosts != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(Invalid::value(path, "", detail));
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(Invalid::value(format!("{path}.hostNetwork"), false, detail));
    }
}
