//! Validation of a service's spec.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort, ServiceSpec};

use super::warnings::{HINTS, MODE};
use super::{families, is, is_headless, is_reachable_from_outside, needs_cluster_ip, needs_health_port};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::metadata::labels;
use crate::workload::validation::{self, each, one_of, one_of_or_none, port_or_name, required};

/// Range of node ports.
pub const NODE_PORTS: std::ops::RangeInclusive<i32> = 30000..=32767;

const FOR_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const CLASS: &str = "spec.loadBalancerClass";
const UNCHANGEABLE: &str = "may not change once set";
const RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const FOR_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";

/// Validates a spec, in the order of upstream's `validateService`
/// (`pkg/apis/core/validation/validation.go`).
pub(super) fn validate(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let ports = spec.ports.as_deref().unwrap_or_default();
    if ports.is_empty() && !is_headless(spec) && !is(spec, "ExternalName") {
        errors.push(Invalid::required("spec.ports", ""));
    }
    for kind in ["LoadBalancer", "NodePort"] {
        if is(spec, kind) && is_headless(spec) {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(Invalid::value("spec.clusterIPs[0]", "None", detail));
        }
    }
    if !needs_cluster_ip(spec) {
        external_name(&mut errors, spec);
    }
    all_ports(&mut errors, ports);
    errors.extend(labels(spec.selector.as_ref(), "spec.selector"));
    session(&mut errors, spec);
    errors.extend(families::related(spec, old));
    let known = old.and_then(|old| old.external_ips.as_deref()).unwrap_or_default();
    for (index, address) in spec.external_ips.iter().flatten().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        let before = errors.len();
        if !known.contains(address) {
            validation::address(&mut errors, &field, address);
        }
        if errors.len() == before {
            validation::endpoint_address(&mut errors, &field, address);
        }
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of(&mut errors, "spec.type", spec.type_.as_deref(), &kinds);
    ports_beside_each_other(&mut errors, spec, ports);
    balancer(&mut errors, spec, old);
    class(&mut errors, spec);
    policies(&mut errors, spec);
    errors
}

fn external_name(errors: &mut Vec<Invalid>, spec: &ServiceSpec) {
    let set = [
        (
            "clusterIPs",
            spec.cluster_ips.as_ref().is_some_and(|list| !list.is_empty())
                || spec.cluster_ip.as_ref().is_some_and(|address| !address.is_empty()),
        ),
        (
            "ipFamilies",
            spec.ip_families.as_ref().is_some_and(|list| !list.is_empty()),
        ),
        ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
    ];
    for (field, _) in set.into_iter().filter(|(_, set)| *set) {
        errors.push(Invalid::forbidden(format!("spec.{field}"), FOR_EXTERNAL_NAME));
    }
    let name = spec.external_name.as_deref().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    if required(errors, "spec.externalName", Some(name)) {
        each(errors, "spec.externalName", name, names::dns1123_subdomain(name));
    }
}

fn all_ports(errors: &mut Vec<Invalid>, ports: &[ServicePort]) {
    let mut named = BTreeSet::new();
    for (index, item) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = item.name.as_deref().unwrap_or_default();
        let field = format!("{path}.name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(Invalid::required(field, ""));
            }
        } else {
            each(errors, &field, name, names::dns1123_label(name));
            if !named.insert(name) {
                errors.push(Invalid::duplicate(field, name));
            }
        }
        one_port(errors, item, &path);
    }
}

/// Validates that node ports, and ports of the service, are unique for each protocol.
fn ports_beside_each_other(errors: &mut Vec<Invalid>, spec: &ServiceSpec, ports: &[ServicePort]) {
    let (mut numbered, mut outside) = (BTreeSet::new(), BTreeSet::new());
    let all = || {
        ports
            .iter()
            .enumerate()
            .map(|(index, item)| (format!("spec.ports[{index}]"), item))
    };
    let given = || all().filter_map(|(path, item)| Some((format!("{path}.nodePort"), item, item.node_port?)));
    if is(spec, "ClusterIP") {
        let detail = "may not be used when `type` is 'ClusterIP'";
        errors.extend(given().map(|(field, _, _)| Invalid::forbidden(field, detail)));
    }
    for (field, item, number) in given() {
        if !outside.insert((number, &item.protocol)) {
            errors.push(Invalid::duplicate(field, number));
        }
    }
    for (path, item) in all().filter(|(_, item)| !numbered.insert((item.port, &item.protocol))) {
        let protocol = item.protocol.as_deref().unwrap_or_default();
        let mut error = Invalid::duplicate(path, "");
        // Upstream shows its internal form of a port with only these two fields set.
        error.value = Some(format!(
            r#"{{"Name":"","Protocol":"{protocol}","AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
            item.port
        ));
        errors.push(error);
    }
}

fn one_port(errors: &mut Vec<Invalid>, item: &ServicePort, path: &str) {
    validation::port(errors, &format!("{path}.port"), item.port);
    let protocols = ["SCTP", "TCP", "UDP"];
    one_of(
        errors,
        &format!("{path}.protocol"),
        item.protocol.as_deref(),
        &protocols,
    );
    if let Some(target) = &item.target_port {
        port_or_name(errors, &format!("{path}.targetPort"), target);
    }
    if let Some(protocol) = item.app_protocol.as_deref() {
        let messages = names::qualified_name(protocol);
        each(errors, &format!("{path}.appProtocol"), protocol, messages);
    }
}

fn session(errors: &mut Vec<Invalid>, spec: &ServiceSpec) {
    let affinity = spec.session_affinity.as_deref();
    one_of(errors, "spec.sessionAffinity", affinity, &["ClientIP", "None"]);
    let client = spec.session_affinity_config.as_ref();
    let seconds = client.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    if let Some(seconds) = seconds.filter(|seconds| !(1..=86400).contains(seconds)) {
        let detail = "must be greater than 0 and less than 86400";
        errors.push(Invalid::value(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            seconds,
            detail,
        ));
    }
}

fn balancer(errors: &mut Vec<Invalid>, spec: &ServiceSpec, old: Option<&ServiceSpec>) {
    // Upstream spells the field this way.
    const RANGES: &str = "spec.LoadBalancerSourceRanges";
    let ranges = |spec: &ServiceSpec| spec.load_balancer_source_ranges.clone().unwrap_or_default();
    let (own, known) = (ranges(spec), old.map(ranges).unwrap_or_default());
    let is_other = !is(spec, "LoadBalancer");
    if is_other && !own.is_empty() {
        errors.push(Invalid::forbidden(RANGES, FOR_LOAD_BALANCER));
    }
    for (index, range) in own.iter().map(|range| range.trim()).enumerate() {
        if !known.iter().any(|known| known.trim() == range) {
            validation::plain_range(errors, &format!("{RANGES}[{index}]"), range);
        }
    }
    if is_other && spec.allocate_load_balancer_node_ports.is_some() {
        let field = "spec.allocateLoadBalancerNodePorts";
        errors.push(Invalid::forbidden(field, FOR_LOAD_BALANCER));
    }
}

/// Validates the two annotations of the topology mode, which must agree, and the one with source
/// ranges, which counts where the spec has none.
pub(super) fn annotations(errors: &mut Vec<Invalid>, service: &Service, old: Option<&Service>) {
    let Some(spec) = &service.spec else { return };
    if let (Some(hints), Some(mode)) = (annotation(service, HINTS), annotation(service, MODE))
        && hints != mode
    {
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        errors.push(Invalid::value(format!("metadata.annotations[{MODE}]"), mode, detail));
    }
    let own = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    let Some(text) = annotation(service, RANGES_ANNOTATION).filter(|_| own.is_empty()) else {
        return;
    };
    let field = format!("metadata.annotations[{RANGES_ANNOTATION}]");
    if !is(spec, "LoadBalancer") {
        errors.push(Invalid::forbidden(field.as_str(), FOR_LOAD_BALANCER));
    }
    if old.and_then(|old| annotation(old, RANGES_ANNOTATION)) != Some(text) && !text.trim().is_empty() {
        for range in text.split(',') {
            validation::plain_range(errors, &field, range.trim());
        }
    }
}

fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    let annotations = service.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn class(errors: &mut Vec<Invalid>, spec: &ServiceSpec) {
    let Some(class) = spec.load_balancer_class.as_deref() else {
        return;
    };
    if is(spec, "LoadBalancer") {
        each(errors, CLASS, class, names::qualified_name(class));
    } else {
        errors.push(Invalid::forbidden(CLASS, FOR_LOAD_BALANCER));
    }
}

fn policies(errors: &mut Vec<Invalid>, spec: &ServiceSpec) {
    const OUTER: &str = "spec.externalTrafficPolicy";
    let outer = spec
        .external_traffic_policy
        .as_deref()
        .filter(|policy| !policy.is_empty());
    match (is_reachable_from_outside(spec), outer) {
        (true, policy) => one_of(errors, OUTER, policy, &["Cluster", "Local"]),
        (false, Some(policy)) => {
            let detail = "may only be set for externally-accessible services";
            errors.push(Invalid::value(OUTER, policy, detail));
        }
        (false, None) => {}
    }
    if let Some(number) = spec.health_check_node_port.filter(|number| *number != 0)
        && !needs_health_port(spec)
    {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(Invalid::value("spec.healthCheckNodePort", number, detail));
    }
    let inner = spec.internal_traffic_policy.as_deref();
    if inner.is_some() || needs_cluster_ip(spec) {
        one_of(errors, "spec.internalTrafficPolicy", inner, &["Cluster", "Local"]);
    }
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let distribution = spec.traffic_distribution.as_deref();
    one_of_or_none(errors, "spec.trafficDistribution", distribution, &distributions);
}

/// Validates an update, in the order of upstream's `ValidateServiceUpdate`.
pub(super) fn validate_update(new: &ServiceSpec, old: &ServiceSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    families::validate_change(&mut errors, new, old);
    if is(new, "LoadBalancer") && is(old, "LoadBalancer") && new.load_balancer_class != old.load_balancer_class {
        let class = serde_json::to_string(&new.load_balancer_class).unwrap_or_default();
        errors.push(Invalid::rendered(CLASS, class, UNCHANGEABLE));
    }
    class(&mut errors, new);
    let is_kept = new.health_check_node_port.unwrap_or(0) == old.health_check_node_port.unwrap_or(0);
    if needs_health_port(old) && needs_health_port(new) && !is_kept {
        errors.push(Invalid::forbidden("spec.healthCheckNodePort", validation::IMMUTABLE));
    }
    errors.extend(validate(new, Some(old)));
    errors
}

/// Validates a status: only a load balancer has ingress points.
pub(super) fn validate_status(service: &Service) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let places = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let balanced = service.spec.as_ref().is_some_and(|spec| is(spec, "LoadBalancer"));
    if !balanced && !places.is_empty() {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        return vec![Invalid::forbidden("status.loadBalancer.ingress", detail)];
    }
    for (index, own) in places.iter().enumerate() {
        place(&mut errors, own, &format!("status.loadBalancer.ingress[{index}]"));
    }
    errors
}

fn place(errors: &mut Vec<Invalid>, own: &LoadBalancerIngress, path: &str) {
    let address = own.ip.as_deref().unwrap_or_default();
    if !address.is_empty() {
        validation::address(errors, &format!("{path}.ip"), address);
    }
    let field = format!("{path}.ipMode");
    match own.ip_mode.as_deref() {
        None if address.is_empty() => {}
        None => errors.push(Invalid::required(field, "must be specified when `ip` is set")),
        Some(_) if address.is_empty() => {
            errors.push(Invalid::forbidden(field, "may not be specified when `ip` is not set"));
        }
        mode => one_of_or_none(errors, &field, mode, &["Proxy", "VIP"]),
    }
    let name = own.hostname.as_deref().unwrap_or_default();
    if !name.is_empty() {
        let field = format!("{path}.hostname");
        each(errors, &field, name, names::dns1123_subdomain(name));
        if name.parse::<std::net::IpAddr>().is_ok() {
            let detail = "must be a DNS name, not an IP address";
            errors.push(Invalid::value(field, name, detail));
        }
    }
}
