//! `CSINode`: the storage drivers on a node.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, immutable_shown, internal, non_negative, required};

impl Kind for CSINode {
    const ANSWERS_DELETED: bool = true;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer(
            "Drivers",
            "Drivers indicates the number of CSI drivers registered on the node",
            |node, _| node.spec.drivers.len().into(),
        ),
        age_column(),
    ];

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, driver) in self.spec.drivers.iter().enumerate() {
            let path = format!("spec.drivers[{index}]");
            validate_driver(&mut errors, driver, &path);
            if !seen.insert(&driver.name) {
                errors.push(Invalid::duplicate(format!("{path}.name"), &driver.name));
            }
            validate_keys(&mut errors, driver.topology_keys.as_deref().unwrap_or_default(), &path);
        }
        errors
    }

    /// Drivers may be added and removed; of an existing one only the volume limit may change.
    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        let counted = |driver: &CSINodeDriver| CSINodeDriver {
            allocatable: None,
            ..driver.clone()
        };
        for before in &old.spec.drivers {
            for driver in self.spec.drivers.iter().filter(|driver| driver.name == before.name) {
                let pair = (&counted(driver), &counted(before));
                immutable_shown(&mut errors, "spec.drivers", pair, internal::storage_driver);
            }
        }
        errors
    }
}

/// Maximum length of a driver's node ID, in bytes.
const IDENTIFIER: usize = 192;

fn validate_driver(errors: &mut Vec<Invalid>, driver: &CSINodeDriver, path: &str) {
    let name = format!("{path}.name");
    each(errors, &name, &driver.name, names::dns1123_subdomain(&driver.name));
    let field = format!("{path}.nodeID");
    required(errors, &field, Some(&driver.node_id));
    if driver.node_id.len() > IDENTIFIER {
        let detail = format!("must be {IDENTIFIER} characters or less");
        errors.push(Invalid::value(field, &driver.node_id, detail));
    }
    if let Some(count) = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) {
        non_negative(errors, &format!("{path}.allocatable.count"), count.into());
    }
}

fn validate_keys(errors: &mut Vec<Invalid>, keys: &[String], path: &str) {
    let mut seen = BTreeSet::new();
    for key in keys {
        required(errors, path, Some(key));
        if !seen.insert(key) {
            errors.push(Invalid::duplicate(path, key));
        }
        each(errors, path, key, names::qualified_name(key));
    }
}
