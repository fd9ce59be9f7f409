//! `ServiceAccount`: an identity for pods.

use k8s_openapi::api::core::v1::ServiceAccount;

use crate::kind::{Column, Kind, Subresource};
use crate::table::age_column;

impl Kind for ServiceAccount {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["sa"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Token];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Secrets", "Number of secrets.", |account, _| {
            account.secrets.iter().flatten().count().into()
        }),
        age_column(),
    ];
}
