//! Validation of containers.

pub(super) mod field_ref;
pub(super) mod file_key;
mod mounts;
mod probe;
mod restart;
mod stop_signal;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, ResourceFieldSelector, SeccompProfile,
    SecurityContext,
};

use super::pod_spec::os;
use super::{apparmor, each, id, internal, local_path, one_of, one_of_or_none, port, required, resources};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::is_sidecar;

/// Pod fields that environment variables may refer to.
const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Context that a pod's containers share.
pub(super) struct Context<'a> {
    /// Names of the pod's volumes, each with whether it is a claim's.
    pub(super) volumes: BTreeMap<&'a str, bool>,
    /// Names of the containers so far.
    pub(super) names: BTreeSet<&'a str>,
    /// Host ports so far: protocol, address, number.
    pub(super) host_ports: BTreeSet<(&'a str, &'a str, i32)>,
    /// Grace period of the pod, in seconds.
    pub(super) grace: i64,
    /// True if the pod's containers are not restarted.
    pub(super) never_restarts: bool,
    /// True if the pod has a user namespace.
    pub(super) own_users: bool,
    /// OS of the pod (`spec.os`).
    pub(super) os: Option<&'a str>,
}

/// Validates a regular container.
pub(super) fn main<'a>(errors: &mut Vec<Invalid>, container: &'a Container, path: &str, context: &mut Context<'a>) {
    common(errors, container, path, context);
    probe::of_container(errors, container, path, context);
    restart::of_container(errors, container, path);
}

/// Validates an init container or sidecar.
pub(super) fn init<'a>(errors: &mut Vec<Invalid>, container: &'a Container, path: &str, context: &mut Context<'a>) {
    common(errors, container, path, context);
    restart::of_container(errors, container, path);
    if is_sidecar(container) {
        probe::of_container(errors, container, path, context);
    } else {
        probe::none(errors, container, path);
        for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
            if policy.restart_policy == "RestartContainer" {
                let field = format!("{path}.resizePolicy[{index}].restartPolicy");
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.push(Invalid::value(field, &policy.restart_policy, detail));
            }
        }
    }
}

pub(super) fn common<'a>(errors: &mut Vec<Invalid>, container: &'a Container, path: &str, context: &mut Context<'a>) {
    let name = format!("{path}.name");
    if required(errors, &name, Some(&container.name)) {
        each(errors, &name, &container.name, names::dns1123_label(&container.name));
        if !context.names.insert(&container.name) {
            errors.push(Invalid::duplicate(name, &container.name));
        }
    }
    let image = container.image.as_deref();
    if required(errors, &format!("{path}.image"), image) && image.is_some_and(|image| image.trim() != image) {
        let detail = "must not have leading or trailing whitespace";
        errors.push(Invalid::value(
            format!("{path}.image"),
            image.unwrap_or_default(),
            detail,
        ));
    }
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = container.termination_message_policy.as_deref();
    one_of(errors, &format!("{path}.terminationMessagePolicy"), policy, &policies);
    ports(
        errors,
        container.ports.as_deref().unwrap_or_default(),
        &format!("{path}.ports"),
        context,
    );
    for (index, variable) in container.env.iter().flatten().enumerate() {
        self::variable(errors, variable, &format!("{path}.env[{index}]"));
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        variables(errors, source, &format!("{path}.envFrom[{index}]"));
    }
    mounts::mounts(errors, container, &format!("{path}.volumeMounts"), &context.volumes);
    mounts::devices(errors, container, &format!("{path}.volumeDevices"), &context.volumes);
    let policies = ["Always", "IfNotPresent", "Never"];
    one_of(
        errors,
        &format!("{path}.imagePullPolicy"),
        container.image_pull_policy.as_deref(),
        &policies,
    );
    if let Some(own) = &container.resources {
        resources::requirements(errors, own, &format!("{path}.resources"));
    }
    resize_policy(
        errors,
        container,
        &format!("{path}.resizePolicy"),
        context.never_restarts,
    );
    if let Some(own) = &container.security_context {
        let path = format!("{path}.securityContext");
        security(errors, own, &path);
        if own.proc_mount.as_deref() == Some("Unmasked") && !context.own_users {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.push(Invalid::value(format!("{path}.procMount"), "Unmasked", detail));
        }
    }
}

/// Validates the resize policies of a container, for changes of CPU and memory.
fn resize_policy(errors: &mut Vec<Invalid>, container: &Container, path: &str, never_restarts: bool) {
    let mut known = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let (resource, restart) = (policy.resource_name.as_str(), policy.restart_policy.as_str());
        if !known.insert(resource) {
            errors.push(Invalid::duplicate(format!("{path}[{index}]"), resource));
        }
        one_of(errors, path, Some(resource), &["cpu", "memory"]);
        one_of(errors, path, Some(restart), &["NotRequired", "RestartContainer"]);
        if never_restarts && restart == "RestartContainer" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(Invalid::value(path, restart, detail));
        }
    }
}

fn ports<'a>(errors: &mut Vec<Invalid>, ports: &'a [ContainerPort], path: &str, context: &mut Context<'a>) {
    let mut known = BTreeSet::new();
    for (index, item) in ports.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Some(name) = item.name.as_deref().filter(|name| !name.is_empty()) {
            let field = format!("{path}.name");
            each(errors, &field, name, names::port_name(name));
            if !known.insert(name) {
                errors.push(Invalid::duplicate(field, name));
            }
        }
        if item.container_port == 0 {
            errors.push(Invalid::required(format!("{path}.containerPort"), ""));
        } else {
            port(errors, &format!("{path}.containerPort"), item.container_port);
        }
        one_of(
            errors,
            &format!("{path}.protocol"),
            item.protocol.as_deref(),
            &["SCTP", "TCP", "UDP"],
        );
        let Some(number) = item.host_port.filter(|number| *number != 0) else {
            continue;
        };
        port(errors, &format!("{path}.hostPort"), number);
        let (protocol, address) = (
            item.protocol.as_deref().unwrap_or("TCP"),
            item.host_ip.as_deref().unwrap_or(""),
        );
        if !context.host_ports.insert((protocol, address, number)) {
            let text = format!("{protocol}/{address}/{number}");
            errors.push(Invalid::duplicate(format!("{path}.hostPort"), text));
        }
    }
}

fn variable(errors: &mut Vec<Invalid>, variable: &EnvVar, path: &str) {
    let field = format!("{path}.name");
    if required(errors, &field, Some(&variable.name)) {
        each(errors, &field, &variable.name, names::environment_name(&variable.name));
    }
    let Some(source) = &variable.value_from else { return };
    let path = format!("{path}.valueFrom");
    let set = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    let detail = match set.into_iter().filter(|set| *set).count() {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        1 if variable.value.as_ref().is_some_and(|value| !value.is_empty()) => {
            "may not be specified when `value` is not empty"
        }
        1 => "",
        _ => "may not have more than one field specified at a time",
    };
    if !detail.is_empty() {
        errors.push(Invalid::value(path.as_str(), "", detail));
    }
    variable_source(errors, source, &path);
}

fn variable_source(errors: &mut Vec<Invalid>, source: &EnvVarSource, path: &str) {
    if let Some(field) = &source.field_ref {
        field_ref::validate(errors, field, &format!("{path}.fieldRef"), VARIABLE_FIELDS);
    }
    if let Some(resource) = &source.resource_field_ref {
        resource_ref(errors, resource, &format!("{path}.resourceFieldRef"), false);
    }
    if let Some(selector) = &source.file_key_ref {
        file_key::selector(errors, selector, &format!("{path}.fileKeyRef"));
    }
    let config = source
        .config_map_key_ref
        .as_ref()
        .map(|key| ("configMapKeyRef", &key.name, &key.key));
    let secret = source
        .secret_key_ref
        .as_ref()
        .map(|key| ("secretKeyRef", &key.name, &key.key));
    for (kind, name, key) in config.into_iter().chain(secret) {
        required(errors, &format!("{path}.{kind}.name"), Some(name));
        let field = format!("{path}.{kind}.key");
        if required(errors, &field, Some(key)) {
            each(errors, &field, key, names::config_key(key));
        }
    }
}

/// Validates a reference to a resource of a container.
pub(super) fn resource_ref(errors: &mut Vec<Invalid>, selector: &ResourceFieldSelector, path: &str, volume: bool) {
    if volume {
        required(
            errors,
            &format!("{path}.containerName"),
            selector.container_name.as_deref(),
        );
    }
    let field = format!("{path}.resource");
    let known = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let wanted = selector.resource.as_str();
    let pages = wanted.starts_with("limits.hugepages-") || wanted.starts_with("requests.hugepages-");
    if required(errors, &field, Some(wanted)) && !known.contains(&wanted) && !pages {
        errors.push(Invalid::not_supported(field, wanted, &known));
    }
    let divisor = selector.divisor.as_ref().map_or("0", |divisor| divisor.0.as_str());
    let (allowed, detail): (&[&str], _) = if matches!(wanted, "limits.cpu" | "requests.cpu") {
        (
            &["0", "1", "1m"],
            "only divisor's values 1m and 1 are supported with the cpu resource",
        )
    } else {
        let units = &[
            "0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
        ];
        (
            units,
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported",
        )
    };
    if !allowed.contains(&divisor) {
        errors.push(Invalid::value(format!("{path}.divisor"), divisor, detail));
    }
}

fn variables(errors: &mut Vec<Invalid>, source: &EnvFromSource, path: &str) {
    if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        each(
            errors,
            &format!("{path}.prefix"),
            prefix,
            names::environment_name(prefix),
        );
    }
    match (&source.config_map_ref, &source.secret_ref) {
        (Some(map), None) => {
            required(errors, &format!("{path}.configMapRef.name"), Some(&map.name));
        }
        (None, Some(secret)) => {
            required(errors, &format!("{path}.secretRef.name"), Some(&secret.name));
        }
        (None, None) => {
            errors.push(Invalid::value(
                path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ));
        }
        (Some(_), Some(_)) => {
            errors.push(Invalid::value(
                path,
                "",
                "may not have more than one field specified at a time",
            ));
        }
    }
}

fn security(errors: &mut Vec<Invalid>, context: &SecurityContext, path: &str) {
    id(errors, &format!("{path}.runAsUser"), context.run_as_user);
    id(errors, &format!("{path}.runAsGroup"), context.run_as_group);
    one_of_or_none(
        errors,
        &format!("{path}.procMount"),
        context.proc_mount.as_deref(),
        &["Default", "Unmasked"],
    );
    seccomp(
        errors,
        context.seccomp_profile.as_ref(),
        &format!("{path}.seccompProfile"),
    );
    let profile = context.app_armor_profile.as_ref();
    apparmor::profile(errors, profile, &format!("{path}.appArmorProfile"));
    let value = || internal::security_context(context);
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(Invalid::rendered(path, value(), detail));
        }
        let added = context
            .capabilities
            .as_ref()
            .and_then(|capabilities| capabilities.add.as_ref());
        if added.is_some_and(|added| added.iter().any(|name| name == "CAP_SYS_ADMIN")) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(Invalid::rendered(path, value(), detail));
        }
    }
    os::options(
        errors,
        context.windows_options.as_ref(),
        &format!("{path}.windowsOptions"),
    );
}

pub(super) fn seccomp(errors: &mut Vec<Invalid>, profile: Option<&SeccompProfile>, path: &str) {
    let Some(profile) = profile else { return };
    one_of(
        errors,
        &format!("{path}.type"),
        Some(&profile.type_),
        &["Localhost", "RuntimeDefault", "Unconfined"],
    );
    let field = format!("{path}.localhostProfile");
    let file = profile.localhost_profile.as_deref();
    match (profile.type_.as_str(), file) {
        ("Localhost", None | Some("")) => {
            errors.push(Invalid::required(field, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(file)) => local_path(errors, &field, file),
        (_, Some(file)) => {
            errors.push(Invalid::value(
                field,
                file,
                "can only be set when seccomp type is Localhost",
            ));
        }
        (_, None) => {}
    }
}
