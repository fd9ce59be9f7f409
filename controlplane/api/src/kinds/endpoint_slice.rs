//! `EndpointSlice`: addresses behind a Service.

use std::net::{Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

use crate::invalid::Invalid;
use crate::kind::{Column, Kind};
use crate::pod::defaults::text;
use crate::table::{age_column, shortened};
use crate::validation::{immutable, one_of, port};

impl Kind for EndpointSlice {
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("AddressType", "IPv4, IPv6 or FQDN.", |slice, _| {
            slice.address_type.clone().into()
        }),
        Column::text("Ports", "Ports of the endpoints.", ports),
        Column::text("Endpoints", "Addresses.", endpoints),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            text(&mut port.protocol, "TCP");
        }
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        one_of(
            &mut errors,
            "addressType",
            Some(&self.address_type),
            &["FQDN", "IPv4", "IPv6"],
        );
        let endpoints = self.endpoints.as_deref().unwrap_or_default();
        if endpoints.len() > 1000 {
            errors.push(Invalid::too_many("endpoints", endpoints.len(), 1000));
        }
        for (index, endpoint) in endpoints.iter().enumerate() {
            let path = format!("endpoints[{index}].addresses");
            match endpoint.addresses.len() {
                0 => errors.push(Invalid::required(path.as_str(), "must contain at least 1 address")),
                1..=100 => {}
                count => errors.push(Invalid::too_many(path.as_str(), count, 100)),
            }
            for (index, item) in endpoint.addresses.iter().enumerate() {
                address(&mut errors, &self.address_type, &format!("{path}[{index}]"), item);
            }
        }
        for (index, item) in self.ports.iter().flatten().enumerate() {
            let path = format!("ports[{index}]");
            if let Some(number) = item.port {
                port(&mut errors, &format!("{path}.port"), number);
            }
            one_of(
                &mut errors,
                &format!("{path}.protocol"),
                item.protocol.as_deref(),
                &["SCTP", "TCP", "UDP"],
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        immutable(&mut errors, "addressType", &self.address_type, &old.address_type);
        errors
    }

    fn spec_changed(&self, old: &Self) -> bool {
        (&self.ports, &self.endpoints, &self.address_type) != (&old.ports, &old.endpoints, &old.address_type)
            || self.metadata.labels != old.metadata.labels
            || self.metadata.annotations != old.metadata.annotations
    }
}

fn address(errors: &mut Vec<Invalid>, kind: &str, field: &str, address: &str) {
    let detail = match kind {
        "IPv4" if address.parse::<Ipv4Addr>().is_err() => "must be a valid IPv4 address",
        "IPv6" if address.parse::<Ipv6Addr>().is_err() => "must be a valid IPv6 address",
        _ => return,
    };
    errors.push(Invalid::value(field, address, detail));
}

fn ports(slice: &EndpointSlice, _now: k8s_openapi::jiff::Timestamp) -> Value {
    let ports = slice.ports.iter().flatten().map(|port| match (port.port, &port.name) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.clone(),
        (None, None) => "*".to_owned(),
    });
    Value::from(shortened(ports.collect(), "<unset>"))
}

fn endpoints(slice: &EndpointSlice, _now: k8s_openapi::jiff::Timestamp) -> Value {
    let addresses = slice
        .endpoints
        .iter()
        .flatten()
        .flat_map(|endpoint| endpoint.addresses.iter().cloned());
    Value::from(shortened(addresses.collect(), "<unset>"))
}
