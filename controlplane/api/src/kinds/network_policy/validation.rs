//! Validation of network policies, with upstream's messages (`pkg/apis/networking/validation`).

use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::value::cidr::Cidr;
use crate::value::invalid::Invalid;
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::{one_of_or_none, plain_range, port, port_or_name};

/// Validates a spec.
pub(super) fn validate(spec: &NetworkPolicySpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if let Some(selector) = &spec.pod_selector {
        label_selector(&mut errors, selector, "spec.podSelector");
    }
    for (index, rule) in spec.ingress.iter().flatten().enumerate() {
        let path = format!("spec.ingress[{index}]");
        ports(&mut errors, rule.ports.as_deref(), &path);
        peers(&mut errors, rule.from.as_deref(), &format!("{path}.from"));
    }
    for (index, rule) in spec.egress.iter().flatten().enumerate() {
        let path = format!("spec.egress[{index}]");
        ports(&mut errors, rule.ports.as_deref(), &path);
        peers(&mut errors, rule.to.as_deref(), &format!("{path}.to"));
    }
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.len() > 2 {
        let value = serde_json::to_string(types).unwrap_or_default();
        let detail = "may not specify more than two policyTypes";
        errors.push(Invalid::rendered("spec.policyTypes", value, detail));
        return errors;
    }
    for (index, own) in types.iter().enumerate() {
        let field = format!("spec.policyTypes[{index}]");
        one_of_or_none(&mut errors, &field, Some(own), &["Ingress", "Egress"]);
    }
    errors
}

fn ports(errors: &mut Vec<Invalid>, ports: Option<&[NetworkPolicyPort]>, path: &str) {
    for (index, own) in ports.unwrap_or_default().iter().enumerate() {
        policy_port(errors, own, &format!("{path}.ports[{index}]"));
    }
}

fn policy_port(errors: &mut Vec<Invalid>, own: &NetworkPolicyPort, path: &str) {
    let protocol = own.protocol.as_deref();
    one_of_or_none(errors, &format!("{path}.protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    let (field, end) = (format!("{path}.port"), format!("{path}.endPort"));
    match (&own.port, own.end_port) {
        (None, Some(last)) => {
            errors.push(Invalid::value(
                end,
                last,
                "may not be specified when `port` is not specified",
            ));
        }
        (Some(first @ IntOrString::Int(number)), last) => {
            port_or_name(errors, &field, first);
            let Some(last) = last else { return };
            if last < *number {
                // Upstream shows the first port.
                let detail = "must be greater than or equal to `port`";
                errors.push(Invalid::value(end.as_str(), number, detail));
            }
            port(errors, &end, last);
        }
        (Some(name @ IntOrString::String(_)), last) => {
            if let Some(last) = last {
                errors.push(Invalid::value(
                    end,
                    last,
                    "may not be specified when `port` is non-numeric",
                ));
            }
            port_or_name(errors, &field, name);
        }
        (None, None) => {}
    }
}

fn peers(errors: &mut Vec<Invalid>, peers: Option<&[NetworkPolicyPeer]>, path: &str) {
    for (index, own) in peers.unwrap_or_default().iter().enumerate() {
        peer(errors, own, &format!("{path}[{index}]"));
    }
}

fn peer(errors: &mut Vec<Invalid>, peer: &NetworkPolicyPeer, path: &str) {
    let selectors = [
        (&peer.pod_selector, "podSelector"),
        (&peer.namespace_selector, "namespaceSelector"),
    ];
    let mut selects = false;
    for (selector, field) in selectors {
        let Some(selector) = selector else { continue };
        selects = true;
        label_selector(errors, selector, &format!("{path}.{field}"));
    }
    match &peer.ip_block {
        Some(own) => {
            block(errors, own, &format!("{path}.ipBlock"));
            if selects {
                errors.push(Invalid::forbidden(
                    path,
                    "may not specify both ipBlock and another peer",
                ));
            }
        }
        None if !selects => errors.push(Invalid::required(path, "must specify a peer")),
        None => {}
    }
}

fn block(errors: &mut Vec<Invalid>, block: &IPBlock, path: &str) {
    let field = format!("{path}.cidr");
    if block.cidr.is_empty() {
        return errors.push(Invalid::required(field, ""));
    }
    plain_range(errors, &field, &block.cidr);
    let Ok(whole) = block.cidr.parse::<Cidr>() else { return };
    for (index, except) in block.except.iter().flatten().enumerate() {
        let field = format!("{path}.except[{index}]");
        plain_range(errors, &field, except);
        if except
            .parse()
            .is_ok_and(|part: Cidr| !whole.covers(part) || part.prefix == whole.prefix)
        {
            errors.push(Invalid::value(field, except, "must be a strict subset of `cidr`"));
        }
    }
}
