//! Validation of a pod's status.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use serde_json::json;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::ending::{self, Group, Leaving};
use crate::workload::validation::{IMMUTABLE, address, each};
use crate::workload::warnings::of_address;

/// Validates an update of the status: a terminated container that may not restart must stay
/// terminated.
pub(super) fn validate(new: &Pod, old: &Pod) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let spec = old.spec.as_ref();
    let (Some(new), Some(old)) = (&new.status, &old.status) else {
        return errors;
    };
    conditions(&mut errors, new.conditions.as_deref().unwrap_or_default());
    nominated(&mut errors, (new, old), spec);
    generation(&mut errors, "status", new.observed_generation);
    if let (Some(new), Some(old)) = (&new.qos_class, &old.qos_class)
        && new != old
    {
        errors.push(Invalid::value("status.qosClass", new, IMMUTABLE));
    }
    for (group, path, new, old) in [
        (
            Group::Main,
            "status.containerStatuses",
            &new.container_statuses,
            &old.container_statuses,
        ),
        (
            Group::Init,
            "status.initContainerStatuses",
            &new.init_container_statuses,
            &old.init_container_statuses,
        ),
        (
            Group::Ephemeral,
            "status.ephemeralContainerStatuses",
            &new.ephemeral_container_statuses,
            &old.ephemeral_container_statuses,
        ),
    ] {
        let (new, old) = (new.as_deref().unwrap_or_default(), old.as_deref().unwrap_or_default());
        if let Some(spec) = spec {
            ends(&mut errors, &Leaving::of(spec, group), (new, old), path);
        }
    }
    claims(&mut errors, new, spec);
    let of_pod: Vec<&str> = new.pod_ips.iter().flatten().map(|own| own.ip.as_str()).collect();
    let of_node: Vec<&str> = new.host_ips.iter().flatten().map(|own| own.ip.as_str()).collect();
    addresses(&mut errors, &of_pod, "status.podIPs");
    let first = of_node.first().copied().unwrap_or_default();
    if new.host_ip.as_deref().unwrap_or_default() != first && !of_node.is_empty() {
        errors.push(Invalid::value(
            "status.hostIPs[0].ip",
            first,
            "must be equal to `hostIP`",
        ));
    }
    addresses(&mut errors, &of_node, "status.hostIPs");
    errors
}

/// Warns about addresses (`podStatusStrategy` of `pkg/registry/core/pod/strategy.go`).
pub(super) fn warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(status) = &pod.status else { return warnings };
    for (index, own) in status.pod_ips.iter().flatten().enumerate() {
        of_address(&mut warnings, &own.ip, &format!("status.podIPs[{index}].ip"));
    }
    for (index, own) in status.host_ips.iter().flatten().enumerate() {
        of_address(&mut warnings, &own.ip, &format!("status.hostIPs[{index}].ip"));
    }
    warnings
}

/// Validates condition types. The built-in types need no check.
fn conditions(errors: &mut Vec<Invalid>, conditions: &[PodCondition]) {
    for (index, condition) in conditions.iter().enumerate() {
        let (name, path) = (condition.type_.as_str(), format!("status.conditions[{index}]"));
        generation(errors, &path, condition.observed_generation);
        if !["PodScheduled", "Ready", "Initialized"].contains(&name) {
            each(errors, &format!("{path}.Type"), name, names::qualified_name(name));
        }
    }
}

fn generation(errors: &mut Vec<Invalid>, path: &str, observed: Option<i64>) {
    if let Some(observed) = observed.filter(|observed| *observed < 0) {
        let detail = "must be a non-negative integer";
        errors.push(Invalid::value(format!("{path}.observedGeneration"), observed, detail));
    }
}

/// Validates a new nominated node, which only a pod without a node may get.
fn nominated(errors: &mut Vec<Invalid>, (new, old): (&PodStatus, &PodStatus), spec: Option<&PodSpec>) {
    let field = "status.nominatedNodeName";
    let node = new.nominated_node_name.as_deref().unwrap_or_default();
    if node.is_empty() || new.nominated_node_name == old.nominated_node_name {
        return;
    }
    each(errors, field, node, names::dns1123_subdomain(node));
    let bound = spec.and_then(|spec| spec.node_name.as_deref());
    if bound.is_some_and(|node| !node.is_empty()) {
        let detail = "may not be set on pods that are already bound to a node";
        errors.push(Invalid::forbidden(field, detail));
    }
}

/// Validates the names of the pod's claims (`validatePodResourceClaimStatuses`).
fn claims(errors: &mut Vec<Invalid>, new: &PodStatus, spec: Option<&PodSpec>) {
    let mut known = BTreeSet::new();
    for (index, claim) in new.resource_claim_statuses.iter().flatten().enumerate() {
        let path = format!("status.resourceClaimStatuses[{index}]");
        let mut wanted = spec
            .and_then(|spec| spec.resource_claims.as_ref())
            .into_iter()
            .flatten();
        if !wanted.any(|wanted| wanted.name == claim.name) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(Invalid::value(format!("{path}.name"), &claim.name, detail));
        }
        if !known.insert(&claim.name) {
            errors.push(Invalid::duplicate(format!("{path}.name"), &claim.name));
        }
        if let Some(name) = &claim.resource_claim_name {
            let field = format!("{path}.resourceClaimName");
            each(errors, &field, name, names::dns1123_subdomain(name));
        }
    }
}

/// Validates IP addresses: at most one of each family.
fn addresses(errors: &mut Vec<Invalid>, texts: &[&str], path: &str) {
    for (index, text) in texts.iter().enumerate() {
        address(errors, &format!("{path}[{index}]"), text);
    }
    let read: Vec<IpAddr> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    let both = read.iter().any(IpAddr::is_ipv4) && read.iter().any(IpAddr::is_ipv6);
    if read.len() == texts.len() && texts.len() > 1 && (texts.len() > 2 || !both) {
        let shown: Vec<_> = texts.iter().map(|text| json!({ "IP": text })).collect();
        let detail = "may specify no more than one IP for each IP family";
        errors.push(Invalid::rendered(path, json!(shown).to_string(), detail));
    }
}

/// Validates that terminated containers that may not restart stay terminated.
fn ends(
    errors: &mut Vec<Invalid>,
    leaving: &Leaving<'_>,
    (new, old): (&[ContainerStatus], &[ContainerStatus]),
    path: &str,
) {
    let going: BTreeSet<&str> = new
        .iter()
        .filter(|status| ending::code(status).is_none())
        .map(|status| status.name.as_str())
        .collect();
    for (index, old) in old.iter().enumerate() {
        let Some(code) = ending::code(old) else { continue };
        if going.contains(old.name.as_str()) && !leaving.allows(index, &old.name, code) {
            let detail = "may not be transitioned to non-terminated state";
            errors.push(Invalid::forbidden(format!("{path}[{index}].state"), detail));
        }
    }
}
