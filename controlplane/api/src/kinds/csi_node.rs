//! `CSINode`: the storage drivers on a node.

use k8s_openapi::api::storage::v1::CSINode;

use crate::kind::{Column, Kind, Updates};
use crate::table::age_column;

impl Kind for CSINode {
    const ANSWERS_DELETED: bool = true;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Drivers", "Number of drivers on the node.", |node, _| {
            node.spec.drivers.len().into()
        }),
        age_column(),
    ];
}
