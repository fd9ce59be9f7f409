//! Upstream's warnings for Services (`pkg/api/service/warnings.go`).

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use crate::workload::warnings::{has_annotation, of_address, of_range};

pub(super) const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
pub(super) const MODE: &str = "service.kubernetes.io/topology-mode";

pub(super) fn of(service: &Service) -> Vec<String> {
    let mut warnings = Vec::new();
    if has_annotation(&service.metadata, HINTS) {
        warnings.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    if let Some(spec) = &service.spec {
        of_spec(&mut warnings, spec);
    }
    warnings
}

/// Warns about a load balancer's addresses (`pkg/registry/core/service/strategy.go`).
pub(super) fn of_status(service: &Service) -> Vec<String> {
    let mut warnings = Vec::new();
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let places = balancer.and_then(|balancer| balancer.ingress.as_deref());
    for (index, place) in places.unwrap_or_default().iter().enumerate() {
        let address = place.ip.as_deref().unwrap_or_default();
        of_address(&mut warnings, address, &format!("status.loadBalancer.ingress[{index}]"));
    }
    warnings
}

fn of_spec(warnings: &mut Vec<String>, spec: &ServiceSpec) {
    let kind = spec.type_.as_deref().unwrap_or_default();
    let outside = spec.external_ips.as_deref().unwrap_or_default();
    let balancer = spec.load_balancer_ip.as_deref().unwrap_or_default();
    let is_headless = kind == "ClusterIP" && spec.cluster_ip.as_deref() == Some("None");
    let is_elsewhere = kind == "ExternalName";
    for (index, address) in spec.cluster_ips.iter().flatten().enumerate() {
        of_address(warnings, address, &format!("spec.clusterIPs[{index}]"));
    }
    if is_headless {
        let affinity = spec.session_affinity.as_deref().unwrap_or("None");
        let ignored = [
            (!balancer.is_empty(), "loadBalancerIP"),
            (!outside.is_empty(), "externalIPs"),
            (affinity != "None", "SessionAffinity"),
        ];
        let ignored = ignored.into_iter().filter(|(is_set, _)| *is_set);
        warnings.extend(ignored.map(|(_, name)| format!("spec.{name} is ignored for headless services")));
    }
    for (index, address) in outside.iter().enumerate() {
        of_address(warnings, address, &format!("spec.externalIPs[{index}]"));
    }
    if !outside.is_empty() && !is_headless && !is_elsewhere {
        let message = "is deprecated and may no longer be implemented in some clusters";
        warnings.push(format!("spec.externalIPs {message}"));
    }
    of_address(warnings, balancer, "spec.loadBalancerIP");
    for (index, range) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        of_range(warnings, range, &format!("spec.loadBalancerSourceRanges[{index}]"));
    }
    if is_elsewhere && !outside.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !is_elsewhere && spec.external_name.as_deref().is_some_and(|name| !name.is_empty()) {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.traffic_distribution.as_deref() == Some("PreferClose") {
        warnings.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
}
