//! Validation of Ingresses, with upstream's messages (`pkg/apis/networking/validation`).

use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, Ingress, IngressBackend, IngressRule, IngressServiceBackend, IngressSpec, IngressTLS,
};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{address, each, port, reference, required};
use crate::workload::warnings::of_address;

const CLASS: &str = "kubernetes.io/ingress.class";
const NO_ADDRESS: &str = "must be a DNS name, not an IP address";
const EMPTY: &IngressSpec = &IngressSpec {
    default_backend: None,
    ingress_class_name: None,
    rules: None,
    tls: None,
};

/// Validates a new Ingress.
pub(super) fn create(ingress: &Ingress) -> Vec<Invalid> {
    let spec = ingress.spec.as_ref().unwrap_or(EMPTY);
    let mut errors = validate(spec, None);
    let annotations = ingress.metadata.annotations.as_ref();
    let class = annotations.and_then(|annotations| annotations.get(CLASS));
    if let (Some(annotated), Some(class)) = (class, &spec.ingress_class_name)
        && annotated != class
    {
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(Invalid::value(format!("annotations.{CLASS}"), annotated, detail));
    }
    errors
}

/// Validates a new spec, or one that replaces another.
pub(super) fn validate(spec: &IngressSpec, old: Option<&IngressSpec>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let rules = spec.rules.as_deref().unwrap_or_default();
    if rules.is_empty() && spec.default_backend.is_none() {
        let value = serde_json::to_string(&spec.rules).unwrap_or_default();
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(Invalid::rendered("spec", value, detail));
    }
    if let Some(own) = &spec.default_backend {
        backend(&mut errors, own, "spec.defaultBackend");
    }
    let tolerant = old.is_some_and(has_invalid_wildcard_rule);
    for (index, own) in rules.iter().enumerate() {
        rule(&mut errors, own, &format!("spec.rules[{index}]"), tolerant);
    }
    let tolerant = old.is_some_and(|old| old.tls.iter().flatten().any(|tls| !secret_name(tls).is_empty()));
    for (index, own) in spec.tls.iter().flatten().enumerate() {
        tls(&mut errors, own, &format!("spec.tls[{index}]"), tolerant);
    }
    if let Some(class) = &spec.ingress_class_name {
        each(
            &mut errors,
            "spec.ingressClassName",
            class,
            names::dns1123_subdomain(class),
        );
    }
    errors
}

/// True if the stored Ingress already has an invalid rule with a wildcard host. It stays allowed:
/// such hosts were once not validated.
fn has_invalid_wildcard_rule(old: &IngressSpec) -> bool {
    let mut rules = old.rules.iter().flatten();
    rules.any(|rule| {
        let mut errors = Vec::new();
        paths(&mut errors, rule, "");
        is_wildcard(rule) && !errors.is_empty()
    })
}

fn is_wildcard(rule: &IngressRule) -> bool {
    rule.host.as_deref().is_some_and(|host| host.contains('*'))
}

fn host_name(errors: &mut Vec<Invalid>, field: &str, host: &str) {
    let wrong = if host.contains('*') {
        names::wildcard_subdomain(host)
    } else {
        names::dns1123_subdomain(host)
    };
    each(errors, field, host, wrong);
}

fn rule(errors: &mut Vec<Invalid>, rule: &IngressRule, path: &str, tolerant: bool) {
    if let Some(host) = rule.host.as_deref().filter(|host| !host.is_empty()) {
        let field = format!("{path}.host");
        if host.parse::<IpAddr>().is_ok() {
            errors.push(Invalid::value(field.as_str(), host, NO_ADDRESS));
        }
        host_name(errors, &field, host);
    }
    if !(tolerant && is_wildcard(rule)) {
        paths(errors, rule, path);
    }
}

fn paths(errors: &mut Vec<Invalid>, rule: &IngressRule, path: &str) {
    let Some(http) = &rule.http else { return };
    let path = format!("{path}.http.paths");
    if http.paths.is_empty() {
        errors.push(Invalid::required(path.as_str(), ""));
    }
    for (index, own) in http.paths.iter().enumerate() {
        http_path(errors, own, &format!("{path}[{index}]"));
    }
}

fn http_path(errors: &mut Vec<Invalid>, own: &HTTPIngressPath, path: &str) {
    let (field, kind) = (format!("{path}.path"), format!("{path}.pathType"));
    if own.path_type.is_empty() {
        return errors.push(Invalid::required(kind, "pathType must be specified"));
    }
    let text = own.path.as_deref().unwrap_or_default();
    let is_relative = !text.starts_with('/');
    let mut wrong = |detail: String| errors.push(Invalid::value(field.as_str(), text, detail));
    match own.path_type.as_str() {
        "Exact" | "Prefix" => {
            if is_relative {
                wrong("must be an absolute path".to_owned());
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"]
                .into_iter()
                .filter(|part| text.contains(part))
            {
                wrong(format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].into_iter().filter(|end| text.ends_with(end)) {
                wrong(format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if is_relative && !text.is_empty() {
                wrong("must be an absolute path".to_owned());
            }
        }
        other => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(Invalid::not_supported(kind, other, &known));
        }
    }
    backend(errors, &own.backend, &format!("{path}.backend"));
}

fn backend(errors: &mut Vec<Invalid>, backend: &IngressBackend, path: &str) {
    match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => {
            errors.push(Invalid::value(
                path,
                "",
                "cannot set both resource and service backends",
            ));
        }
        (Some(own), None) => {
            let path = format!("{path}.resource");
            reference(errors, &path, own.api_group.as_deref(), &own.kind, &own.name);
        }
        (None, Some(own)) => service(errors, own, path),
        (None, None) => errors.push(Invalid::value(path, "", "resource or service backend is required")),
    }
}

fn service(errors: &mut Vec<Invalid>, service: &IngressServiceBackend, path: &str) {
    let field = format!("{path}.service.name");
    if required(errors, &field, Some(&service.name)) {
        each(errors, &field, &service.name, names::dns1123_label(&service.name));
    }
    let own = service.port.as_ref();
    let name = own
        .and_then(|port| port.name.as_deref())
        .filter(|name| !name.is_empty());
    let number = own.and_then(|port| port.number).filter(|number| *number != 0);
    match (name, number) {
        (Some(_), Some(_)) => errors.push(Invalid::value(path, "", "cannot set both port name & port number")),
        (Some(name), None) => each(
            errors,
            &format!("{path}.service.port.name"),
            name,
            names::port_name(name),
        ),
        (None, Some(number)) => port(errors, &format!("{path}.service.port.number"), number),
        (None, None) => errors.push(Invalid::required(path, "port name or number is required")),
    }
}

fn secret_name(tls: &IngressTLS) -> Vec<String> {
    let name = tls.secret_name.as_deref().filter(|name| !name.is_empty());
    name.map(names::dns1123_subdomain).unwrap_or_default()
}

fn tls(errors: &mut Vec<Invalid>, tls: &IngressTLS, path: &str, tolerant: bool) {
    for (index, host) in tls.hosts.iter().flatten().enumerate() {
        host_name(errors, &format!("{path}.hosts[{index}]"), host);
    }
    if !tolerant {
        let name = tls.secret_name.as_deref().unwrap_or_default();
        each(errors, &format!("{path}.secretName"), name, secret_name(tls));
    }
}

/// Validates the load balancer status of an Ingress.
pub(super) fn status(new: &Ingress, old: &Ingress) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let before: Vec<_> = points(old).collect();
    for (index, point) in points(new).enumerate() {
        let path = format!("status.loadBalancer.ingress[{index}]");
        let ip = point.ip.as_deref().filter(|ip| !ip.is_empty());
        if let Some(ip) = ip.filter(|ip| !before.iter().any(|old| old.ip.as_deref() == Some(ip))) {
            address(&mut errors, &format!("{path}.ip"), ip);
        }
        if let Some(host) = point.hostname.as_deref().filter(|host| !host.is_empty()) {
            let field = format!("{path}.hostname");
            each(&mut errors, &field, host, names::dns1123_subdomain(host));
            if host.parse::<IpAddr>().is_ok() {
                errors.push(Invalid::value(field, host, NO_ADDRESS));
            }
        }
    }
    errors
}

/// Warns about a load balancer's addresses (`pkg/registry/networking/ingress/strategy.go`).
pub(super) fn status_warnings(ingress: &Ingress) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, point) in points(ingress).enumerate() {
        let address = point.ip.as_deref().unwrap_or_default();
        of_address(&mut warnings, address, &format!("status.loadBalancer.ingress[{index}]"));
    }
    warnings
}

fn points(ingress: &Ingress) -> impl Iterator<Item = &k8s_openapi::api::networking::v1::IngressLoadBalancerIngress> {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten()
}
