//! Defaults of a pod's spec (`k8s.io/kubernetes/pkg/apis/core/v1/defaults.go`).

pub(crate) mod drivers;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EmptyDirVolumeSource, HTTPGetAction, LifecycleHandler,
    ObjectFieldSelector, PersistentVolumeClaimSpec, PodSpec, PodTemplateSpec, Probe, ResourceFieldSelector,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{as_container, from_container, level};
use crate::value::quantity::{Quantity, canonicalize};

/// Sets a text that is missing or empty.
pub(crate) fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

/// Sets a number that is missing or zero, as upstream does for numbers that are not pointers.
pub(crate) fn positive(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

/// Drops an empty string, so that equal objects have equal bytes.
fn drop_empty(field: &mut Option<String>) {
    if field.as_deref() == Some("") {
        *field = None;
    }
}

fn drop_false(field: &mut Option<bool>) {
    if *field == Some(false) {
        *field = None;
    }
}

/// Sets defaults of a template. Upstream's metadata is a struct: it is written even if it is empty.
pub fn set_template_defaults(template: &mut PodTemplateSpec) {
    template.metadata.get_or_insert_default();
    set_spec_defaults(template.spec.get_or_insert_default());
}

/// Sets defaults of a template's spec: those of a pod, except for those that only pods get.
fn set_spec_defaults(spec: &mut PodSpec) {
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    for field in [
        &mut spec.node_name,
        &mut spec.hostname,
        &mut spec.subdomain,
        &mut spec.priority_class_name,
    ] {
        drop_empty(field);
    }
    for field in [&mut spec.host_network, &mut spec.host_pid, &mut spec.host_ipc] {
        drop_false(field);
    }
    service_account(spec);
    if let Some(overhead) = &mut spec.overhead {
        amounts(overhead);
    }
    if let Some(own) = &mut spec.resources {
        for list in [&mut own.limits, &mut own.requests].into_iter().flatten() {
            amounts(list);
        }
    }
    for volume in spec.volumes.iter_mut().flatten() {
        self::volume(volume);
    }
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        self::container(container);
    }
    for own in spec.ephemeral_containers.iter_mut().flatten() {
        let mut container = as_container(own);
        self::container(&mut container);
        drop_empty(&mut own.target_container_name);
        *own = from_container(container, own.target_container_name.take());
    }
}

/// Defaults of a pod's spec.
pub fn set_pod_defaults(spec: &mut PodSpec) {
    set_spec_defaults(spec);
    if let Some(seconds) = spec
        .termination_grace_period_seconds
        .as_mut()
        .filter(|seconds| **seconds < 0)
    {
        // Only for pods: templates keep their value.
        *seconds = 1;
    }
    spec.enable_service_links.get_or_insert(true);
    let host_network = spec.host_network == Some(true);
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        requests_from_limits(container.resources.get_or_insert_default());
        for port in container.ports.iter_mut().flatten().filter(|_| host_network) {
            if port.host_port.unwrap_or(0) == 0 {
                port.host_port = Some(port.container_port);
            }
        }
    }
    level::set_defaults(spec);
}

/// Keeps `serviceAccount`, the old name of `serviceAccountName`, equal to it.
fn service_account(spec: &mut PodSpec) {
    drop_empty(&mut spec.service_account_name);
    drop_empty(&mut spec.service_account);
    if spec.service_account_name.is_none() {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
}

fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Rewrites amounts in canonical form; finer than a thousandth is rounded up.
pub(crate) fn amounts(amounts: &mut BTreeMap<String, Text>) {
    for amount in amounts.values_mut() {
        if let Ok(quantity) = Quantity::parse(&amount.0) {
            let canonical = quantity.to_milli().to_string();
            if canonical != amount.0 {
                amount.0 = canonical;
            }
        }
    }
}

/// Default pull policy of an image: `Always` for the tag `latest` and for no tag, otherwise
/// `IfNotPresent`.
pub fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':').map(|(_, tag)| tag) {
        Some("latest") => "Always",
        None if digest.is_none() => "Always",
        Some(_) | None => "IfNotPresent",
    }
}

fn container(container: &mut Container) {
    let policy = pull_policy(container.image.as_deref().unwrap_or_default());
    text(&mut container.image_pull_policy, policy);
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    drop_empty(&mut container.working_dir);
    for field in [&mut container.stdin, &mut container.stdin_once, &mut container.tty] {
        drop_false(field);
    }
    for variable in container.env.iter_mut().flatten() {
        let file = variable
            .value_from
            .as_mut()
            .and_then(|source| source.file_key_ref.as_mut());
        if let Some(file) = file {
            file.optional.get_or_insert(false);
        }
    }
    let resources = container.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts(list);
    }
    for port in container.ports.iter_mut().flatten() {
        self::port(port);
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        self::probe(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
            .into_iter()
            .flatten()
        {
            self::handler(handler);
        }
    }
    for variable in container.env.iter_mut().flatten() {
        let Some(source) = &mut variable.value_from else {
            continue;
        };
        source.field_ref.iter_mut().for_each(field_ref);
        source.resource_field_ref.iter_mut().for_each(resource_ref);
    }
    for mount in container.volume_mounts.iter_mut().flatten() {
        drop_false(&mut mount.read_only);
        drop_empty(&mut mount.sub_path);
        drop_empty(&mut mount.sub_path_expr);
    }
}

fn port(port: &mut ContainerPort) {
    text(&mut port.protocol, "TCP");
    if port.host_port == Some(0) {
        port.host_port = None;
    }
}

fn probe(probe: &mut Probe) {
    positive(&mut probe.timeout_seconds, 1);
    positive(&mut probe.period_seconds, 10);
    positive(&mut probe.success_threshold, 1);
    positive(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn handler(handler: &mut LifecycleHandler) {
    handler.http_get.iter_mut().for_each(http_get);
}

fn http_get(action: &mut HTTPGetAction) {
    text(&mut action.path, "/");
    text(&mut action.scheme, "HTTP");
}

fn field_ref(selector: &mut ObjectFieldSelector) {
    text(&mut selector.api_version, "v1");
}

fn resource_ref(selector: &mut ResourceFieldSelector) {
    canonicalize(selector.divisor.get_or_insert_with(|| Text("0".to_owned())));
}

/// Sets defaults of a claim's spec at any path.
pub(crate) fn set_claim_defaults(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    let resources = spec.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts(list);
    }
}

/// Default file mode: 0644.
const MODE: i32 = 0o644;

fn volume(volume: &mut Volume) {
    if !has_source(volume) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(empty) = &mut volume.empty_dir {
        drop_empty(&mut empty.medium);
        empty.size_limit.iter_mut().for_each(canonicalize);
    }
    drivers::of_pod(volume);
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.image {
        drop_empty(&mut source.reference);
        let policy = pull_policy(source.reference.as_deref().unwrap_or_default());
        text(&mut source.pull_policy, policy);
    }
    if let Some(template) = volume
        .ephemeral
        .as_mut()
        .and_then(|source| source.volume_claim_template.as_mut())
    {
        template.metadata.get_or_insert_default();
        set_claim_defaults(&mut template.spec);
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(MODE);
        source.items.iter_mut().flatten().for_each(downward_file);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(MODE);
        for source in projected.sources.iter_mut().flatten() {
            let items = source.downward_api.iter_mut().filter_map(|api| api.items.as_mut());
            items.flatten().for_each(downward_file);
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
}

fn downward_file(file: &mut DownwardAPIVolumeFile) {
    file.field_ref.iter_mut().for_each(field_ref);
    file.resource_field_ref.iter_mut().for_each(resource_ref);
}

/// True if a volume has a source of any type.
fn has_source(volume: &Volume) -> bool {
    let name = volume.name.clone();
    *volume
        != Volume {
            name,
            ..Volume::default()
        }
}
