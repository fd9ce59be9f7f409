//! `EndpointSlice`: addresses behind a Service.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

use crate::kind::{Column, Kind};
use crate::pod::defaults::text;
use crate::table::age_column;

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

    fn spec_changed(&self, old: &Self) -> bool {
        (&self.ports, &self.endpoints, &self.address_type) != (&old.ports, &old.endpoints, &old.address_type)
            || self.metadata.labels != old.metadata.labels
            || self.metadata.annotations != old.metadata.annotations
    }
}

fn ports(slice: &EndpointSlice, _now: k8s_openapi::jiff::Timestamp) -> Value {
    let number = |port: Option<i32>| port.map_or_else(|| "*".to_owned(), |port| port.to_string());
    let numbers = slice.ports.iter().flatten().map(|port| number(port.port)).collect();
    Value::from(shortened(numbers, "<unset>"))
}

fn endpoints(slice: &EndpointSlice, _now: k8s_openapi::jiff::Timestamp) -> Value {
    let addresses = slice
        .endpoints
        .iter()
        .flatten()
        .flat_map(|endpoint| endpoint.addresses.iter().cloned());
    Value::from(shortened(addresses.collect(), "<unset>"))
}

/// Three items and how many more there are, as upstream shows endpoints.
fn shortened(items: Vec<String>, none: &str) -> String {
    let count = items.len();
    let shown: Vec<String> = items.into_iter().take(3).collect();
    match count {
        0 => none.to_owned(),
        1..=3 => shown.join(","),
        _ => format!("{} + {} more...", shown.join(","), count - 3),
    }
}
