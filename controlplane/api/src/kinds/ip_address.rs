//! `IPAddress`: one address of a service range, and whose it is. Its name is the address.

use k8s_openapi::api::networking::v1::IPAddress;

use crate::kind::{Column, Kind, Updates};

impl Kind for IPAddress {
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["ip"];
    const COLUMNS: &'static [Column<Self>] = &[Column::text("ParentRef", "Whose it is.", |address, _| {
        let parent = &address.spec.parent_ref;
        let parts = [
            parent.group.as_deref(),
            Some(parent.resource.as_str()),
            parent.namespace.as_deref(),
            Some(parent.name.as_str()),
        ];
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("/").into()
    })];
}
