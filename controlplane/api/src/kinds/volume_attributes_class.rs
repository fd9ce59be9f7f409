//! `VolumeAttributesClass`: attributes of volumes that can be changed later.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use crate::kind::{Column, Kind};
use crate::table::age_column;

impl Kind for VolumeAttributesClass {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["vac"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("DriverName", "The storage driver.", |class, _| {
            class.driver_name.as_str().into()
        }),
        age_column(),
    ];
}
