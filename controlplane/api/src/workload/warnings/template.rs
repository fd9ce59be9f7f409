//! Warnings about pods and pod templates.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{
    Affinity, Container, EnvVar, PodAffinityTerm, PodSpec, PodTemplateSpec, Volume, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    fraction, has_annotation, of_address, of_claim, of_term, of_terms, old_label, paths, pod_name, pods_name, ports,
};
use crate::workload::pod::as_container;

const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

const NOBODY: &str = "a null labelSelector results in matching no pod";

/// Warnings about a new pod.
pub(crate) fn of_pod(metadata: &ObjectMeta, spec: &PodSpec) -> Vec<String> {
    let mut warnings: Vec<String> = pod_name(metadata).into_iter().collect();
    of_spec(&mut warnings, metadata, spec, "");
    warnings
}

/// Warns about a template at a path.
pub(crate) fn of_template(warnings: &mut Vec<String>, template: &PodTemplateSpec, path: &str) {
    let nothing = ObjectMeta::default();
    let metadata = template.metadata.as_ref().unwrap_or(&nothing);
    if let Some(spec) = &template.spec {
        of_spec(warnings, metadata, spec, &format!("{path}."));
    }
}

/// Warnings about a workload with a template, if it is new or its spec has changed.
pub(crate) fn of_maker(
    metadata: &ObjectMeta,
    old: Option<&ObjectMeta>,
    template: Option<&PodTemplateSpec>,
    path: &str,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let changed = old.is_none_or(|old| old.generation != metadata.generation);
    if let Some(template) = template.filter(|_| changed) {
        warnings.extend(old.is_none().then(|| pods_name(metadata)).flatten());
        of_template(&mut warnings, template, path);
    }
    warnings
}

/// Warnings about a job's spec at any path, if it is new or has changed.
pub(crate) fn of_job(
    metadata: &ObjectMeta,
    old: Option<&ObjectMeta>,
    spec: Option<&JobSpec>,
    path: &str,
) -> Vec<String> {
    let template = spec.map(|spec| &spec.template);
    let mut warnings = of_maker(metadata, old, template, &format!("{path}.template"));
    let many = spec.is_some_and(|spec| {
        spec.completion_mode.as_deref() == Some("Indexed")
            && spec.completions.is_some_and(|completions| completions > 100_000)
            && spec.parallelism.is_some_and(|parallelism| parallelism > 10_000)
    });
    if many && old.is_none_or(|old| old.generation != metadata.generation) {
        let of_name = warnings.first().is_some_and(|text| text.starts_with("metadata.name: "));
        warnings.insert(usize::from(of_name), format!("{path}: {MANY_INDEXES}"));
    }
    warnings
}

const MANY_INDEXES: &str = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than \
10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail";

/// Warns about a pod's spec. `at` ends with a dot, or is empty.
fn of_spec(warnings: &mut Vec<String>, metadata: &ObjectMeta, spec: &PodSpec, at: &str) {
    of_nodes(warnings, spec, at);
    for (name, message) in OLD_ANNOTATIONS
        .iter()
        .filter(|(name, _)| has_annotation(metadata, name))
    {
        warnings.push(format!("{at}metadata.annotations[{name}]: {message}"));
    }
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        of_volume(warnings, volume, &format!("{at}spec.volumes[{index}]"));
    }
    paths::of_volumes(warnings, volumes);
    of_lists(warnings, spec, at);
    for name in ["memory", "ephemeral-storage"] {
        let amount = spec.overhead.as_ref().and_then(|overhead| overhead.get(name));
        fraction(warnings, amount, || format!("{at}spec.overhead[{name}]"));
    }
    of_annotations(warnings, metadata, spec, at);
    let lists = [
        ("initContainers", spec.init_containers.as_ref()),
        ("containers", Some(&spec.containers)),
    ];
    let others: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(as_container).collect();
    let lists = lists.into_iter().chain([("ephemeralContainers", Some(&others))]);
    let mut all = Vec::new();
    let mut of_ports = Vec::new();
    for (name, list) in lists {
        for (index, container) in list.into_iter().flatten().enumerate() {
            let path = format!("{at}spec.{name}[{index}]");
            of_container(warnings, metadata, spec, container, (at, &path));
            ports::of_container(&mut of_ports, container.ports.as_ref(), &path, &mut all);
        }
    }
    warnings.extend(of_ports);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        warnings.push(format!(
            "{at}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    if let Some(affinity) = &spec.affinity {
        of_affinity(warnings, affinity, &format!("{at}spec.affinity"));
    }
    let servers = spec
        .dns_config
        .as_ref()
        .and_then(|config| config.nameservers.as_deref());
    for (index, server) in servers.unwrap_or_default().iter().enumerate() {
        of_address(warnings, server, &format!("{at}spec.dnsConfig.nameservers[{index}]"));
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        of_address(warnings, &alias.ip, &format!("{at}spec.hostAliases[{index}].ip"));
    }
}

fn of_nodes(warnings: &mut Vec<String>, spec: &PodSpec, at: &str) {
    for label in spec.node_selector.iter().flat_map(BTreeMap::keys) {
        if let Some(message) = old_label(label) {
            warnings.push(format!("{at}spec.nodeSelector[{label}]: {message}"));
        }
    }
    if let Some(nodes) = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
    {
        let path = format!("{at}spec.affinity.nodeAffinity");
        if let Some(required) = &nodes.required_during_scheduling_ignored_during_execution {
            let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
            of_terms(warnings, &required.node_selector_terms, &path);
        }
        let preferred = nodes
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        for (index, term) in preferred.enumerate() {
            let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference");
            of_term(warnings, &term.preference, &path);
        }
    }
    for (index, spread) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = format!("{at}spec.topologySpreadConstraints[{index}]");
        let key = &spread.topology_key;
        if let Some(message) = old_label(key) {
            warnings.push(format!("{path}.topologyKey: {key} is {message}"));
        }
        if spread.label_selector.is_none() {
            warnings.push(format!("{path}.labelSelector: {NOBODY}"));
        }
    }
}

fn of_volume(warnings: &mut Vec<String>, volume: &Volume, path: &str) {
    let old = [
        (
            volume.photon_persistent_disk.is_some(),
            "photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
        ),
        (
            volume.git_repo.is_some(),
            "gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
        ),
        (
            volume.scale_io.is_some(),
            "scaleIO: deprecated in v1.16, non-functional in v1.22+",
        ),
        (
            volume.flocker.is_some(),
            "flocker: deprecated in v1.22, non-functional in v1.25+",
        ),
        (
            volume.storageos.is_some(),
            "storageOS: deprecated in v1.22, non-functional in v1.25+",
        ),
        (
            volume.quobyte.is_some(),
            "quobyte: deprecated in v1.22, non-functional in v1.25+",
        ),
        (
            volume.glusterfs.is_some(),
            "glusterfs: deprecated in v1.25, non-functional in v1.26+",
        ),
        (
            volume.cephfs.is_some(),
            "cephfs: deprecated in v1.28, non-functional in v1.31+",
        ),
        (
            volume.rbd.is_some(),
            "rbd: deprecated in v1.28, non-functional in v1.31+",
        ),
    ];
    for (_, message) in old.into_iter().filter(|(is_used, _)| *is_used) {
        warnings.push(format!("{path}.{message}"));
    }
    let template = volume
        .ephemeral
        .as_ref()
        .and_then(|own| own.volume_claim_template.as_ref());
    if let Some(template) = template {
        of_claim(
            warnings,
            &template.spec,
            &format!("{path}.ephemeral.volumeClaimTemplate.spec"),
        );
    }
}

fn of_lists(warnings: &mut Vec<String>, spec: &PodSpec, at: &str) {
    let mut seen = BTreeSet::new();
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let address = alias.ip.as_str();
        if !seen.insert(address) {
            warnings.push(format!("{at}spec.hostAliases[{index}].ip: duplicate ip {address:?}"));
        }
    }
    let secrets = || {
        spec.image_pull_secrets
            .iter()
            .flatten()
            .map(|secret| secret.name.as_str())
            .enumerate()
    };
    seen.clear();
    for (index, name) in secrets() {
        if !seen.insert(name) {
            warnings.push(format!(
                "{at}spec.imagePullSecrets[{index}].name: duplicate name {name:?}"
            ));
        }
    }
    for (index, name) in secrets().filter(|(_, name)| name.is_empty()) {
        warnings.push(format!(
            "{at}spec.imagePullSecrets[{index}].name: invalid empty name {name:?}"
        ));
    }
}

fn of_annotations(warnings: &mut Vec<String>, metadata: &ObjectMeta, spec: &PodSpec, at: &str) {
    const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
    let profile = spec
        .security_context
        .as_ref()
        .and_then(|context| context.seccomp_profile.as_ref());
    if profile.is_none() && has_annotation(metadata, SECCOMP) {
        warnings.push(format!(
            "{at}metadata.annotations[{SECCOMP}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
}

fn of_container(
    warnings: &mut Vec<String>,
    metadata: &ObjectMeta,
    spec: &PodSpec,
    container: &Container,
    (at, path): (&str, &str),
) {
    let context = container.security_context.as_ref();
    let seccomp = format!("container.seccomp.security.alpha.kubernetes.io/{}", container.name);
    if context.and_then(|context| context.seccomp_profile.as_ref()).is_none() && has_annotation(metadata, &seccomp) {
        warnings.push(format!(
            "{at}metadata.annotations[{seccomp}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
    let armor = format!("container.apparmor.security.beta.kubernetes.io/{}", container.name);
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.app_armor_profile.as_ref());
    let own = context.and_then(|context| context.app_armor_profile.as_ref());
    if !at.is_empty() && of_pod.or(own).is_none() && has_annotation(metadata, &armor) {
        warnings.push(format!(
            "{at}metadata.annotations[{armor}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        ));
    }
    let asked = container.resources.as_ref();
    let (limits, requests) = (
        asked.and_then(|asked| asked.limits.as_ref()),
        asked.and_then(|asked| asked.requests.as_ref()),
    );
    for name in ["memory", "ephemeral-storage"] {
        let of = |list: Option<&BTreeMap<String, Text>>| list.and_then(|list| list.get(name)).cloned();
        fraction(warnings, of(limits).as_ref(), || {
            format!("{path}.resources.limits[{name}]")
        });
        fraction(warnings, of(requests).as_ref(), || {
            format!("{path}.resources.requests[{name}]")
        });
    }
    of_environment(warnings, container.env.as_deref().unwrap_or_default(), path);
}

fn of_environment(warnings: &mut Vec<String>, variables: &[EnvVar], path: &str) {
    let mut names = BTreeSet::new();
    for (index, own) in variables.iter().enumerate() {
        if names.insert(own.name.as_str()) {
            continue;
        }
        let name = &own.name;
        let (before, value) = (format!("$({name})"), own.value.as_deref().unwrap_or_default());
        if own.value_from.is_some() || value == before || !value.contains(&before) {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

/// Type of affinity: its name, and its terms.
type Sort<'a> = (
    &'static str,
    Option<&'a Vec<PodAffinityTerm>>,
    Option<&'a Vec<WeightedPodAffinityTerm>>,
);

fn of_affinity(warnings: &mut Vec<String>, affinity: &Affinity, path: &str) {
    let near = affinity.pod_affinity.as_ref().map(|own| {
        let required = own.required_during_scheduling_ignored_during_execution.as_ref();
        let preferred = own.preferred_during_scheduling_ignored_during_execution.as_ref();
        ("podAffinity", required, preferred)
    });
    let far = affinity.pod_anti_affinity.as_ref().map(|own| {
        let required = own.required_during_scheduling_ignored_during_execution.as_ref();
        let preferred = own.preferred_during_scheduling_ignored_during_execution.as_ref();
        ("podAntiAffinity", required, preferred)
    });
    let kinds: [Option<Sort<'_>>; 2] = [near, far];
    for (name, required, preferred) in kinds.into_iter().flatten() {
        for (index, term) in required.into_iter().flatten().enumerate() {
            if term.label_selector.is_none() {
                let path = format!("{path}.{name}.requiredDuringSchedulingIgnoredDuringExecution[{index}]");
                warnings.push(format!("{path}.labelSelector: {NOBODY}"));
            }
        }
        for (index, term) in preferred.into_iter().flatten().enumerate() {
            if term.pod_affinity_term.label_selector.is_none() {
                let path = format!("{path}.{name}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
                warnings.push(format!("{path}.podAffinityTerm.labelSelector: {NOBODY}"));
            }
        }
    }
}
