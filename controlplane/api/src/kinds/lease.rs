//! Lease: a sign of life, or a lock.

use k8s_openapi::api::coordination::v1::Lease;

use crate::kind::{Column, Kind};
use crate::table::age_column;

impl Kind for Lease {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Holder", "Who holds it.", |lease, _| {
            lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone())
                .unwrap_or_default()
                .into()
        }),
        age_column(),
    ];
}
