//! `CSIStorageCapacity`: how much storage of a class is left at some nodes.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::kind::{Column, Kind, Updates};
use crate::quantity::canonicalize;

impl Kind for CSIStorageCapacity {
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("StorageClassName", "The class.", |capacity, _| {
            capacity.storage_class_name.as_str().into()
        }),
        Column::text("Capacity", "How much is left.", |capacity, _| {
            let amount = capacity.capacity.as_ref();
            amount.map_or("<unset>", |amount| &amount.0).into()
        }),
    ];

    fn set_defaults(&mut self) {
        self.capacity.iter_mut().for_each(canonicalize);
        self.maximum_volume_size.iter_mut().for_each(canonicalize);
    }
}
