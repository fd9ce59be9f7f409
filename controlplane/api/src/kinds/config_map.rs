//! `ConfigMap`: data for pods.

use k8s_openapi::api::core::v1::ConfigMap;

use crate::kind::{Column, Kind};
use crate::table::age_column;

impl Kind for ConfigMap {
    const SHORT_NAMES: &'static [&'static str] = &["cm"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Data", "Number of entries.", |map, _| {
            (map.data.iter().flatten().count() + map.binary_data.iter().flatten().count()).into()
        }),
        age_column(),
    ];
}
