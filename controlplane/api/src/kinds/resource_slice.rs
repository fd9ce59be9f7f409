//! `ResourceSlice`: devices that a driver offers on a node.

use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::kind::{Column, Field, Kind};
use crate::table::age_column;

impl Kind for ResourceSlice {
    const ANSWERS_DELETED: bool = true;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Node", "The node that has the devices.", |slice, _| {
            slice.spec.node_name.as_deref().unwrap_or_default().into()
        }),
        Column::text("Driver", "The driver of the devices.", |slice, _| {
            slice.spec.driver.as_str().into()
        }),
        Column::text("Pool", "The pool to which the slice belongs.", |slice, _| {
            slice.spec.pool.name.as_str().into()
        }),
        age_column(),
    ];
    const FIELDS: &'static [Field<Self>] = &[
        Field {
            label: "spec.nodeName",
            value: |slice| slice.spec.node_name.clone().unwrap_or_default(),
        },
        Field {
            label: "spec.driver",
            value: |slice| slice.spec.driver.clone(),
        },
    ];

    crate::spec_alone!();
}
