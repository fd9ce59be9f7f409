//! Checks that `restricted` adds, sorted by upstream's IDs.

use k8s_openapi::api::core::v1::Volume;
use serde_json::Value;

use super::{Check, Finding, Pod, baseline, containers, finding, plural, quoted, setters, sorted};

/// Sorted by ID.
pub(super) const CHECKS: &[Check] = &[
    Check::new("allowPrivilegeEscalation", 8, escalation),
    Check::new("capabilities_restricted", 22, capabilities).instead_of("capabilities_baseline"),
    Check::new("procMount_restricted", 35, baseline::proc_mount_always).instead_of("procMount"),
    Check::new("restrictedVolumes", 0, volumes).instead_of("hostPathVolumes"),
    Check::new("runAsNonRoot", 0, run_as_non_root),
    Check::new("runAsUser", 23, run_as_user),
    Check::new("seccompProfile_restricted", 19, seccomp).instead_of("seccompProfile_baseline"),
];

fn escalation(pod: &Pod<'_>) -> Option<Finding> {
    if pod.is_windows() {
        return None;
    }
    let names =
        pod.named(|container| container.context.and_then(|context| context.allow_privilege_escalation) != Some(false));
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            containers(&names)
        );
        finding("allowPrivilegeEscalation != false", detail)
    })
}

fn capabilities(pod: &Pod<'_>) -> Option<Finding> {
    if pod.is_windows() {
        return None;
    }
    let keeps = pod.named(|container| {
        let dropped = container
            .capabilities()
            .and_then(|capabilities| capabilities.drop.as_ref());
        !dropped.is_some_and(|dropped| dropped.iter().any(|capability| capability == "ALL"))
    });
    let added = |container: &super::Contained<'_>| -> Vec<String> {
        let added = container
            .capabilities()
            .and_then(|capabilities| capabilities.add.clone());
        let added = added.into_iter().flatten();
        added.filter(|capability| capability != "NET_BIND_SERVICE").collect()
    };
    let adds = pod.named(|container| !added(container).is_empty());
    let mut parts = Vec::new();
    if !keeps.is_empty() {
        let who = containers(&keeps);
        parts.push(format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    if !adds.is_empty() {
        let bad: Vec<String> = pod.containers().flat_map(|container| added(&container)).collect();
        let bad = sorted(bad.iter().map(String::as_str));
        let who = containers(&adds);
        let bad = quoted(&bad);
        parts.push(format!(
            "{who} must not include {bad} in securityContext.capabilities.add"
        ));
    }
    (!parts.is_empty()).then(|| finding("unrestricted capabilities", parts.join("; ")))
}

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Type of a volume, which is the name of its field.
fn kind_of(volume: &Volume) -> String {
    let Ok(Value::Object(members)) = serde_json::to_value(volume) else {
        return "unknown".to_owned();
    };
    let kind = members.into_iter().map(|(name, _)| name).find(|name| name != "name");
    kind.unwrap_or_else(|| "unknown".to_owned())
}

fn volumes(pod: &Pod<'_>) -> Option<Finding> {
    let volumes = pod.spec.volumes.iter().flatten();
    let bad: Vec<(&str, String)> = volumes
        .map(|volume| (volume.name.as_str(), kind_of(volume)))
        .filter(|(_, kind)| !VOLUMES.contains(&kind.as_str()))
        .collect();
    let names: Vec<&str> = bad.iter().map(|(name, _)| *name).collect();
    let kinds = sorted(bad.iter().map(|(_, kind)| kind.as_str()));
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural(names.len(), "volume", "volumes"),
            quoted(&names),
            plural(names.len(), "uses", "use"),
            plural(kinds.len(), "restricted volume type", "restricted volume types"),
            quoted(&kinds)
        );
        finding("restricted volume types", detail)
    })
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Finding> {
    if pod.has_own_users() {
        return None;
    }
    let own = pod.context().and_then(|context| context.run_as_non_root);
    let of = |container: &super::Contained<'_>| container.context.and_then(|context| context.run_as_non_root);
    let explicit = pod.named(|container| of(container) == Some(false));
    let reason = "runAsNonRoot != true";
    if let Some(setters) = setters(own == Some(false), &explicit) {
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return Some(finding(reason, detail));
    }
    let silent = pod.named(|container| of(container).is_none() && own != Some(true));
    (!silent.is_empty()).then(|| {
        let who = containers(&silent);
        finding(
            reason,
            format!("pod or {who} must set securityContext.runAsNonRoot=true"),
        )
    })
}

fn run_as_user(pod: &Pod<'_>) -> Option<Finding> {
    if pod.has_own_users() {
        return None;
    }
    let own = pod.context().and_then(|context| context.run_as_user);
    let names = pod.named(|container| container.context.and_then(|context| context.run_as_user) == Some(0));
    let setters = setters(own == Some(0), &names)?;
    Some(finding("runAsUser=0", format!("{setters} must not set runAsUser=0")))
}

fn seccomp(pod: &Pod<'_>) -> Option<Finding> {
    if pod.is_windows() {
        return None;
    }
    if let Some(bad) = baseline::seccomp(pod) {
        return Some(bad);
    }
    let own = pod.context().and_then(|context| context.seccomp_profile.as_ref());
    if own.is_some() {
        return None;
    }
    let silent = pod.named(|container| {
        container
            .context
            .and_then(|context| context.seccomp_profile.as_ref())
            .is_none()
    });
    (!silent.is_empty()).then(|| {
        let who = containers(&silent);
        let detail =
            format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
        finding("seccompProfile", detail)
    })
}
