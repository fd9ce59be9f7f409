//! Validation of endpoint slices, with upstream's messages (`pkg/apis/discovery/validation`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointPort, EndpointSlice};

use crate::value::invalid::Invalid;
use crate::value::names::{self, Rule};
use crate::workload::validation::{self, PROTOCOLS, each, endpoint_address, metadata, one_of, port};

const ENDPOINTS: usize = 1000;
const ADDRESSES: usize = 100;
const PORTS: usize = 20_000;
const TOPOLOGY: usize = 16;
const HINTS: usize = 8;

/// Validates a slice. Endpoints that an older version let in may stay.
pub(super) fn validate(slice: &EndpointSlice, old: Option<&EndpointSlice>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let kinds = ["FQDN", "IPv4", "IPv6"];
    one_of(&mut errors, "addressType", Some(&slice.address_type), &kinds);
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    if endpoints.len() > ENDPOINTS {
        errors.push(Invalid::too_many("endpoints", endpoints.len(), ENDPOINTS));
    } else if old.is_none_or(|old| old.endpoints != slice.endpoints) {
        for (index, own) in endpoints.iter().enumerate() {
            endpoint(&mut errors, own, &slice.address_type, &format!("endpoints[{index}]"));
        }
    }
    let ports = slice.ports.as_deref().unwrap_or_default();
    if ports.len() > PORTS {
        errors.push(Invalid::too_many("ports", ports.len(), PORTS));
        return errors;
    }
    let mut seen = BTreeSet::new();
    for (index, own) in ports.iter().enumerate() {
        let is_taken = !seen.insert(&own.name);
        validate_port(&mut errors, own, is_taken, &format!("ports[{index}]"));
    }
    errors
}

fn endpoint(errors: &mut Vec<Invalid>, endpoint: &Endpoint, kind: &str, path: &str) {
    let field = format!("{path}.addresses");
    match endpoint.addresses.len() {
        0 => errors.push(Invalid::required(field.as_str(), "must contain at least 1 address")),
        count if count > ADDRESSES => errors.push(Invalid::too_many(field.as_str(), count, ADDRESSES)),
        _ => {}
    }
    for (index, own) in endpoint.addresses.iter().enumerate() {
        address(errors, kind, &field, index, own);
    }
    if let Some(node) = &endpoint.node_name {
        each(
            errors,
            &format!("{path}.nodeName"),
            node,
            names::dns1123_subdomain(node),
        );
    }
    let topology = format!("{path}.deprecatedTopology");
    let labels = endpoint.deprecated_topology.as_ref();
    let count = labels.map_or(0, std::collections::BTreeMap::len);
    if count > TOPOLOGY {
        errors.push(Invalid::too_many(topology.as_str(), count, TOPOLOGY));
    }
    errors.extend(metadata::labels(labels, &topology));
    if let Some(host) = &endpoint.hostname {
        each(errors, &format!("{path}.hostname"), host, names::dns1123_label(host));
    }
    if let Some(own) = &endpoint.hints {
        hints(errors, own, &format!("{path}.hints"));
    }
}

fn hints(errors: &mut Vec<Invalid>, hints: &EndpointHints, path: &str) {
    let zones = hints.for_zones.iter().flatten().map(|zone| zone.name.as_str());
    let nodes = hints.for_nodes.iter().flatten().map(|node| node.name.as_str());
    let rule: fn(&str) -> Vec<String> = names::label_value;
    for (all, field, rule) in [
        (zones.collect::<Vec<_>>(), "forZones", rule),
        (nodes.collect(), "forNodes", names::dns1123_subdomain),
    ] {
        let field = format!("{path}.{field}");
        if all.len() > HINTS {
            errors.push(Invalid::too_many(field, all.len(), HINTS));
            continue;
        }
        for (index, name) in all.iter().enumerate() {
            let field = format!("{field}[{index}].name");
            if all.iter().take(index).any(|earlier| earlier == name) {
                errors.push(Invalid::duplicate(field.as_str(), name));
            }
            each(errors, &field, name, rule(name));
        }
    }
}

/// Validates an address; IPv6 must be in canonical form.
fn address(errors: &mut Vec<Invalid>, kind: &str, list: &str, index: usize, text: &str) {
    let (field, before) = (format!("{list}[{index}]"), errors.len());
    match kind {
        "IPv4" => validation::address(errors, &field, text),
        "IPv6" => each(errors, &field, text, Rule::Address.check(text, false)),
        "FQDN" => return domain(errors, &field, text),
        _ => return,
    }
    let Some(address) = text.parse::<IpAddr>().ok().filter(|_| errors.len() == before) else {
        return;
    };
    if address.is_ipv4() != (kind == "IPv4") {
        errors.push(Invalid::value(list, text, format!("must be an {kind} address")));
    }
    endpoint_address(errors, &field, text);
}

/// Validates a domain of at least two labels; it may end with a dot.
fn domain(errors: &mut Vec<Invalid>, field: &str, text: &str) {
    if text.is_empty() {
        return errors.push(Invalid::required(field, ""));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let wrong = names::dns1123_subdomain(name);
    let is_fit = wrong.is_empty();
    each(errors, field, name, wrong);
    if is_fit && !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(Invalid::value(field, name, detail));
    }
}

fn validate_port(errors: &mut Vec<Invalid>, own: &EndpointPort, is_taken: bool, path: &str) {
    let (field, name) = (format!("{path}.name"), own.name.as_deref().unwrap_or_default());
    if !name.is_empty() {
        each(errors, &field, name, names::dns1123_label(name));
    }
    if is_taken {
        errors.push(Invalid::duplicate(field, name));
    }
    if let Some(number) = own.port {
        port(errors, &format!("{path}.port"), number);
    }
    one_of(errors, &format!("{path}.protocol"), own.protocol.as_deref(), &PROTOCOLS);
    if let Some(protocol) = &own.app_protocol {
        let field = format!("{path}.appProtocol");
        each(errors, &field, protocol, names::qualified_name(protocol));
    }
}
