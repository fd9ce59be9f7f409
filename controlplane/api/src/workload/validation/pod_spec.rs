//! Validation of a pod's spec, in a pod or in a template.

pub(super) mod affinity;
mod dns;
mod ephemeral;
pub(super) mod os;
pub(super) mod volume;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, PodSpec, Sysctl};

use super::container::{self, Context, file_key};
use super::{apparmor, each, id, metadata, one_of, one_of_or_none, required, resources};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::as_container;

/// Longest host name in the kernel.
const LONGEST_HOSTNAME: usize = 64;

/// Validates a pod's spec at `path`, such as `spec` or `spec.template.spec`.
pub fn validate(spec: &PodSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let volumes = volume::volumes(
        &mut errors,
        spec.volumes.as_deref().unwrap_or_default(),
        &format!("{path}.volumes"),
    );
    containers(&mut errors, spec, path, volumes);
    ports_of_the_node(&mut errors, spec, path);
    one_of(
        &mut errors,
        &format!("{path}.restartPolicy"),
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(
        &mut errors,
        &format!("{path}.dnsPolicy"),
        spec.dns_policy.as_deref(),
        &policies,
    );
    dns::config(&mut errors, spec, &format!("{path}.dnsConfig"));
    if let Some(deadline) = spec
        .active_deadline_seconds
        .filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds))
    {
        let field = format!("{path}.activeDeadlineSeconds");
        errors.push(Invalid::value(
            field,
            deadline,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    errors.extend(metadata::labels(
        spec.node_selector.as_ref(),
        &format!("{path}.nodeSelector"),
    ));
    own_names(&mut errors, spec, path);
    if let Some(context) = &spec.security_context {
        security(&mut errors, spec, context, &format!("{path}.securityContext"));
    }
    if let Some(terms) = &spec.affinity {
        affinity::affinity(&mut errors, terms, &format!("{path}.affinity"));
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    affinity::tolerations(&mut errors, tolerations, &format!("{path}.tolerations"));
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    affinity::spread(&mut errors, constraints, &format!("{path}.topologySpreadConstraints"));
    resources::of_pod(&mut errors, spec, &format!("{path}.resources"));
    resources::amounts(&mut errors, spec.overhead.as_ref(), &format!("{path}.overhead"));
    gates(&mut errors, spec, path);
    file_key::volumes(&mut errors, spec, path);
    dns::host_aliases(&mut errors, spec, path);
    os::host_process(&mut errors, spec, path);
    own_users(&mut errors, spec, path);
    os::pod(&mut errors, spec, path);
    errors
}

/// Validates readiness gates and scheduling gates.
fn gates(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let field = format!("{path}.readinessGates[{index}].conditionType");
        let kind = &gate.condition_type;
        each(errors, &field, kind, names::qualified_name(kind));
    }
    let mut known = BTreeSet::new();
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let field = format!("{path}.schedulingGates[{index}]");
        each(errors, &field, &gate.name, names::qualified_name(&gate.name));
        if !known.insert(&gate.name) {
            errors.push(Invalid::duplicate(field, &gate.name));
        }
    }
}

/// Rejects host namespaces for a pod with a user namespace, which has no rights in them. Field
/// names are spelled as upstream's.
fn own_users(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    if spec.host_users != Some(false) {
        return;
    }
    let shared = [
        (spec.host_network, "hostNetwork"),
        (spec.host_pid, "HostPID"),
        (spec.host_ipc, "HostIPC"),
    ];
    for (_, field) in shared.into_iter().filter(|(shared, _)| *shared == Some(true)) {
        errors.push(Invalid::forbidden(
            format!("{path}.{field}"),
            "when `hostUsers` is false",
        ));
    }
    let of = |name: &str, containers: Option<&Vec<Container>>| {
        let has = |container: &Container| container.volume_devices.as_ref().is_some_and(|all| !all.is_empty());
        let with = containers.into_iter().flatten().enumerate().filter(|(_, own)| has(own));
        let fields = with.map(|(index, _)| format!("{path}.{name}[{index}].volumeDevices"));
        fields.collect::<Vec<_>>()
    };
    let devices = [
        of("initContainers", spec.init_containers.as_ref()),
        of("containers", Some(&spec.containers)),
    ];
    let refused = devices.into_iter().flatten();
    errors.extend(refused.map(|field| Invalid::forbidden(field, "when `hostUsers` is false")));
}

fn containers(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str, volumes: BTreeMap<&str, bool>) {
    if spec.containers.is_empty() {
        errors.push(Invalid::required(format!("{path}.containers"), ""));
    }
    let added = spec.ephemeral_containers.as_deref().unwrap_or_default();
    let converted: Vec<Container> = added.iter().map(as_container).collect();
    let mut context = Context {
        volumes,
        names: BTreeSet::new(),
        host_ports: BTreeSet::new(),
        grace: spec.termination_grace_period_seconds.unwrap_or(30),
        never_restarts: spec.restart_policy.as_deref() == Some("Never"),
        own_users: spec.host_users == Some(false),
        os: spec.os.as_ref().map(|os| os.name.as_str()),
    };
    for (index, item) in spec.containers.iter().enumerate() {
        container::main(errors, item, &format!("{path}.containers[{index}]"), &mut context);
    }
    // Init containers run before the others, so they may use the same ports.
    context.host_ports.clear();
    for (index, item) in spec.init_containers.iter().flatten().enumerate() {
        container::init(errors, item, &format!("{path}.initContainers[{index}]"), &mut context);
    }
    for (index, item) in converted.iter().enumerate() {
        let path = format!("{path}.ephemeralContainers[{index}]");
        ephemeral::container(errors, item, &path, &mut context);
    }
    ephemeral::targets(errors, added, spec, &format!("{path}.ephemeralContainers"));
}

fn own_names(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(name) = set(&spec.node_name) {
        each(
            errors,
            &format!("{path}.nodeName"),
            &name,
            names::dns1123_subdomain(&name),
        );
    }
    if let Some(name) = set(&spec.service_account_name) {
        each(
            errors,
            &format!("{path}.serviceAccountName"),
            &name,
            names::dns1123_subdomain(&name),
        );
    }
    if let Some(name) = set(&spec.hostname) {
        each(errors, &format!("{path}.hostname"), &name, names::dns1123_label(&name));
    }
    if let Some(name) = set(&spec.hostname_override) {
        hostname_override(errors, spec, &name, path);
    }
    if let Some(name) = set(&spec.subdomain) {
        each(errors, &format!("{path}.subdomain"), &name, names::dns1123_label(&name));
    }
    if let Some(name) = set(&spec.priority_class_name) {
        each(
            errors,
            &format!("{path}.priorityClassName"),
            &name,
            names::dns1123_subdomain(&name),
        );
    }
    if let Some(name) = set(&spec.scheduler_name) {
        each(
            errors,
            &format!("{path}.schedulerName"),
            &name,
            names::qualified_name(&name),
        );
    }
}

/// Validates that host ports match container ports with host networking; missing ones are
/// defaulted, later in templates.
fn ports_of_the_node(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    if spec.host_network != Some(true) {
        return;
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (number, port) in container.ports.iter().flatten().enumerate() {
            let host = port.host_port.unwrap_or(0);
            if host != 0 && host != port.container_port {
                let field = format!("{path}.containers[{index}].ports[{number}].hostPort");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(Invalid::value(field, host, detail));
            }
        }
    }
}

fn security(errors: &mut Vec<Invalid>, spec: &PodSpec, context: &PodSecurityContext, path: &str) {
    id(errors, &format!("{path}.runAsUser"), context.run_as_user);
    id(errors, &format!("{path}.runAsGroup"), context.run_as_group);
    id(errors, &format!("{path}.fsGroup"), context.fs_group);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(errors, &format!("{path}.supplementalGroups[{index}]"), Some(*group));
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Invalid::value(format!("{path}.shareProcessNamespace"), true, detail));
    }
    let mut known = BTreeSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = format!("{path}.sysctls[{index}]");
        self::sysctl(errors, sysctl, &path);
        of_the_node(errors, spec, sysctl, &path);
        if !known.insert(&sysctl.name) {
            errors.push(Invalid::duplicate(format!("{path}.name"), &sysctl.name));
        }
    }
    let changes = context.fs_group_change_policy.as_deref();
    let field = format!("{path}.fsGroupChangePolicy");
    one_of_or_none(errors, &field, changes, &["Always", "OnRootMismatch"]);
    container::seccomp(
        errors,
        context.seccomp_profile.as_ref(),
        &format!("{path}.seccompProfile"),
    );
    os::options(
        errors,
        context.windows_options.as_ref(),
        &format!("{path}.windowsOptions"),
    );
    let profile = context.app_armor_profile.as_ref();
    apparmor::profile(errors, profile, &format!("{path}.appArmorProfile"));
    let labels = context.se_linux_change_policy.as_deref();
    let field = format!("{path}.seLinuxChangePolicy");
    one_of_or_none(errors, &field, labels, &["MountOption", "Recursive"]);
    let groups = context.supplemental_groups_policy.as_deref();
    let field = format!("{path}.supplementalGroupsPolicy");
    one_of_or_none(errors, &field, groups, &["Merge", "Strict"]);
}

/// Rejects sysctls of a namespace that the pod shares with the node.
fn of_the_node(errors: &mut Vec<Invalid>, spec: &PodSpec, sysctl: &Sysctl, path: &str) {
    let name = sysctl.name.replace('/', ".");
    let network = name.starts_with("net.");
    let messages = name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .into_iter()
            .any(|prefix| name.starts_with(prefix));
    for (shared, inside, field) in [
        (spec.host_network, network, "hostNetwork"),
        (spec.host_ipc, messages, "hostIPC"),
    ] {
        if shared == Some(true) && inside {
            let detail = format!("may not be specified when '{field}' is true");
            errors.push(Invalid::value(format!("{path}.name"), &sysctl.name, detail));
        }
    }
}

/// Validates name and value of a sysctl. The value must not inject a second setting.
fn sysctl(errors: &mut Vec<Invalid>, sysctl: &Sysctl, path: &str) {
    let field = format!("{path}.name");
    let part = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        text.bytes().all(plain) && ends(text.bytes().next()) && ends(text.bytes().last())
    };
    if required(errors, &field, Some(&sysctl.name))
        && (sysctl.name.len() > 253 || !sysctl.name.split(['.', '/']).all(part))
    {
        let detail = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*\
[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
        errors.push(Invalid::value(field, &sysctl.name, detail));
    }
    if !sysctl
        .value
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b" \t,.-_:/".contains(&byte))
    {
        let detail = "must consist of letters, digits and punctuation that separates numbers";
        errors.push(Invalid::value(format!("{path}.value"), &sysctl.value, detail));
    }
}

/// Validates a host name override.
fn hostname_override(errors: &mut Vec<Invalid>, spec: &PodSpec, name: &str, path: &str) {
    let field = format!("{path}.hostnameOverride");
    each(errors, &field, name, names::dns1123_subdomain(name));
    if name.len() > LONGEST_HOSTNAME {
        errors.push(Invalid::too_long(field, LONGEST_HOSTNAME));
    }
    for (other, set) in [
        ("hostNetwork", spec.host_network),
        ("setHostnameAsFQDN", spec.set_hostname_as_fqdn),
    ] {
        if set == Some(true) {
            let detail = "may not be true when `hostnameOverride` is set";
            errors.push(Invalid::forbidden(format!("{path}.{other}"), detail));
        }
    }
}
