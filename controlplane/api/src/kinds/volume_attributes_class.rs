//! `VolumeAttributesClass`: mutable attributes of volumes.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use crate::kind::Kind;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::storage;

impl Kind for VolumeAttributesClass {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["vac"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "DriverName",
            "storage.v1.VolumeAttributesClass.driverName",
            |class, _| class.driver_name.as_str().into(),
        ),
        age_column(),
    ];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        storage::driver(&mut errors, "driverName", &self.driver_name);
        storage::parameters(&mut errors, self.parameters.as_ref());
        if self
            .parameters
            .as_ref()
            .is_none_or(std::collections::BTreeMap::is_empty)
        {
            errors.push(Invalid::required(
                "parameters",
                "must contain at least one key/value pair",
            ));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let changed = [
            (self.driver_name != old.driver_name, "driverName"),
            (self.parameters != old.parameters, "parameters"),
        ];
        let changed = changed.into_iter().filter(|(changed, _)| *changed);
        let forbidden =
            changed.map(|(_, field)| Invalid::forbidden(field, format!("updates to {field} are forbidden.")));
        let mut errors: Vec<_> = forbidden.collect();
        errors.extend(self.validate());
        errors
    }
}
