//! `ServiceCIDR`: a range of addresses for Services.

use k8s_openapi::api::networking::v1::ServiceCIDR;

use crate::kind::{Column, Kind, Subresource};
use crate::table::age_column;

impl Kind for ServiceCIDR {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("CIDRs", "The ranges, one of each family at most.", |range, _| {
            let cidrs = range.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
            cidrs.map(|cidrs| cidrs.join(",")).unwrap_or_default().into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    crate::spec_and_status!();
}
