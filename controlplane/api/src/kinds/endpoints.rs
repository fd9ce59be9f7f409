//! `Endpoints`: addresses behind a Service, in the form before `EndpointSlice`.

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column, shortened};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::defaults::text;
use crate::workload::validation::{PROTOCOLS, address, each, endpoint_address, one_of, port, required};
use crate::workload::warnings::of_address;

impl Kind for Endpoints {
    const DEPRECATED: Option<&'static str> =
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["ep"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Endpoints", "core.v1.Endpoints.subsets", |endpoints, _| {
            let subsets = endpoints.subsets.as_deref().unwrap_or_default();
            // Subsets whose addresses are not ready show nothing (`formatEndpoints`).
            let none = if subsets.is_empty() { "<none>" } else { "" };
            shortened(subsets.iter().flat_map(addresses).collect(), none).into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        for subset in self.subsets.iter_mut().flatten() {
            for port in subset.ports.iter_mut().flatten() {
                text(&mut port.protocol, "TCP");
            }
        }
    }

    /// Warns about addresses, but not the controller, which writes them as they should be.
    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        let labels = self.metadata.labels.as_ref();
        let manager = labels.and_then(|labels| labels.get("endpoints.kubernetes.io/managed-by"));
        if manager.is_some_and(|manager| manager == "endpoint-controller") {
            return warnings;
        }
        for (index, subset) in self.subsets.iter().flatten().enumerate() {
            for (addresses, field) in [
                (&subset.addresses, "addresses"),
                (&subset.not_ready_addresses, "notReadyAddresses"),
            ] {
                for (number, own) in addresses.iter().flatten().enumerate() {
                    of_address(
                        &mut warnings,
                        &own.ip,
                        &format!("subsets[{index}].{field}[{number}].ip"),
                    );
                }
            }
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        for (index, subset) in self.subsets.iter().flatten().enumerate() {
            validate_subset(&mut errors, subset, &format!("subsets[{index}]"));
        }
        errors
    }

    /// Unchanged subsets are not validated.
    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        if self.subsets == old.subsets {
            return Vec::new();
        }
        self.validate()
    }
}

fn validate_subset(errors: &mut Vec<Invalid>, subset: &EndpointSubset, path: &str) {
    let ready = subset.addresses.as_deref().unwrap_or_default();
    let others = subset.not_ready_addresses.as_deref().unwrap_or_default();
    if ready.is_empty() && others.is_empty() {
        errors.push(Invalid::required(
            path,
            "must specify `addresses` or `notReadyAddresses`",
        ));
    }
    for (addresses, field) in [(ready, "addresses"), (others, "notReadyAddresses")] {
        for (index, own) in addresses.iter().enumerate() {
            validate_address(errors, own, &format!("{path}.{field}[{index}]"));
        }
    }
    let ports = subset.ports.as_deref().unwrap_or_default();
    for (index, own) in ports.iter().enumerate() {
        validate_port(errors, own, ports.len() > 1, &format!("{path}.ports[{index}]"));
    }
}

fn validate_address(errors: &mut Vec<Invalid>, own: &EndpointAddress, path: &str) {
    let field = format!("{path}.ip");
    address(errors, &field, &own.ip);
    if let Some(host) = own.hostname.as_deref().filter(|host| !host.is_empty()) {
        each(errors, &format!("{path}.hostname"), host, names::dns1123_label(host));
    }
    if let Some(node) = &own.node_name {
        each(
            errors,
            &format!("{path}.nodeName"),
            node,
            names::dns1123_subdomain(node),
        );
    }
    endpoint_address(errors, &field, &own.ip);
}

fn validate_port(errors: &mut Vec<Invalid>, own: &EndpointPort, named: bool, path: &str) {
    let field = format!("{path}.name");
    let name = own.name.as_deref().filter(|name| !name.is_empty());
    if named {
        required(errors, &field, name);
    }
    if let Some(name) = name {
        each(errors, &field, name, names::dns1123_label(name));
    }
    port(errors, &format!("{path}.port"), own.port);
    one_of(errors, &format!("{path}.protocol"), own.protocol.as_deref(), &PROTOCOLS);
    if let Some(protocol) = &own.app_protocol {
        let field = format!("{path}.appProtocol");
        each(errors, &field, protocol, names::qualified_name(protocol));
    }
}

/// `10.244.0.2:80` for each port and address; bare addresses where there are no ports.
fn addresses(subset: &EndpointSubset) -> Vec<String> {
    let addresses = || subset.addresses.iter().flatten().map(|address| &address.ip);
    let ports = subset.ports.as_deref().unwrap_or_default();
    if ports.is_empty() {
        return addresses().cloned().collect();
    }
    let both = ports
        .iter()
        .flat_map(|port| addresses().map(move |address| (address, port.port)));
    both.map(|(address, port)| {
        if address.contains(':') {
            format!("[{address}]:{port}")
        } else {
            format!("{address}:{port}")
        }
    })
    .collect()
}
