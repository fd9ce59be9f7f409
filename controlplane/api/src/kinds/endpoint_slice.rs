//! `EndpointSlice`: addresses behind a Service.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

mod validation;

use crate::kind::Kind;
use crate::table::{Column, age_column, shortened};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;
use crate::workload::validation::immutable;

impl Kind for EndpointSlice {
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("AddressType", "discovery.v1.EndpointSlice.addressType", |slice, _| {
            slice.address_type.clone().into()
        }),
        Column::text("Ports", "discovery.v1.EndpointSlice.ports", ports),
        Column::text("Endpoints", "discovery.v1.EndpointSlice.endpoints", endpoints),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            text(&mut port.protocol, "TCP");
        }
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::validate(self, None)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = validation::validate(self, Some(old));
        immutable(&mut errors, "addressType", &self.address_type, &old.address_type);
        errors
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let warning = "spec.addressType: FQDN endpoints are deprecated";
        let warns = self.address_type == "FQDN" && old.is_none();
        warns.then(|| warning.to_owned()).into_iter().collect()
    }

    fn spec_changed(&self, old: &Self) -> bool {
        (&self.ports, &self.endpoints, &self.address_type) != (&old.ports, &old.endpoints, &old.address_type)
            || self.metadata.labels != old.metadata.labels
    }
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
