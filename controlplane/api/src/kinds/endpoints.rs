//! `Endpoints`: addresses behind a Service, in the form before `EndpointSlice`.

use k8s_openapi::api::core::v1::{EndpointSubset, Endpoints};

use crate::kind::{Column, Kind, Updates};
use crate::pod::defaults::text;
use crate::table::{age_column, shortened};

impl Kind for Endpoints {
    const DEPRECATED: Option<&'static str> =
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["ep"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Endpoints", "Addresses and ports.", |endpoints, _| {
            let subsets = endpoints.subsets.iter().flatten();
            shortened(subsets.flat_map(addresses).collect(), "<none>").into()
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
