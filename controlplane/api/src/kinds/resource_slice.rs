//! `ResourceSlice`: devices that a driver publishes.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};

use super::resource_claim::validation::{limit, pool as pool_name};
use crate::kind::{Field, Kind};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::storage::csi_driver;
use crate::workload::validation::{each, immutable, internal, node_selector};

impl Kind for ResourceSlice {
    const ANSWERS_DELETED: bool = true;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Node", "resource.v1.ResourceSliceSpec.nodeName", |slice, _| {
            slice.spec.node_name.as_deref().unwrap_or_default().into()
        }),
        Column::text("Driver", "resource.v1.ResourceSliceSpec.driver", |slice, _| {
            slice.spec.driver.as_str().into()
        }),
        Column::text("Pool", "resource.v1.ResourcePool.name", |slice, _| {
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

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let driver = &self.spec.driver;
        let warning =
            format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters");
        let warns = *driver != driver.to_lowercase();
        warns.then_some(warning).into_iter().collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        identity(&mut errors, &self.spec);
        place(&mut errors, &self.spec);
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let (new, old) = (&self.spec, &old.spec);
        identity(&mut errors, new);
        immutable(&mut errors, "spec.pool.name", &new.pool.name, &old.pool.name);
        immutable(&mut errors, "spec.driver", &new.driver, &old.driver);
        immutable(&mut errors, "spec.nodeName", &new.node_name, &old.node_name);
        place(&mut errors, new);
        errors
    }

    crate::spec_alone!();
}

/// Validates the driver and the pool.
fn identity(errors: &mut Vec<Invalid>, spec: &ResourceSliceSpec) {
    csi_driver(errors, "spec.driver", &spec.driver);
    let pool = &spec.pool;
    pool_name(errors, "spec.pool.name", &pool.name);
    if pool.resource_slice_count <= 0 {
        let detail = "must be greater than zero";
        errors.push(Invalid::value(
            "spec.pool.resourceSliceCount",
            pool.resource_slice_count,
            detail,
        ));
    }
    if pool.generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.push(Invalid::value("spec.pool.generation", pool.generation, detail));
    }
}

/// Maximum number of devices in a slice.
const DEVICES: usize = 128;
/// The same where a device has taints, counters or lists of values.
const ADVANCED_DEVICES: usize = 64;

/// Validates that exactly one field selects the nodes, and that the names of devices are unique.
fn place(errors: &mut Vec<Invalid>, spec: &ResourceSliceSpec) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let mut set = Vec::new();
    match spec.node_name.as_deref() {
        None => {}
        Some("") => {
            let detail = "must be either unset or set to a non-empty string";
            errors.push(Invalid::value("spec.nodeName", "", detail));
        }
        Some(name) => {
            set.push("`nodeName`");
            each(errors, "spec.nodeName", name, names::dns1123_subdomain(name));
        }
    }
    if let Some(selector) = &spec.node_selector {
        set.push("`nodeSelector`");
        node_selector(errors, selector, "spec.nodeSelector");
        let terms = &selector.node_selector_terms;
        if terms.len() != 1 {
            let shown = internal::node_selector_terms(terms);
            let detail = "must have exactly one node selector term";
            errors.push(Invalid::rendered("spec.nodeSelector.nodeSelectorTerms", shown, detail));
        }
    }
    for (flag, name) in [
        (spec.all_nodes, "allNodes"),
        (spec.per_device_node_selection, "perDeviceNodeSelection"),
    ] {
        match flag {
            None => {}
            Some(false) => {
                let detail = "must be either unset or set to true";
                errors.push(Invalid::value(format!("spec.{name}"), false, detail));
            }
            Some(true) if name == "allNodes" => set.push("`allNodes`"),
            Some(true) => set.push("`perDeviceNodeSelection`"),
        }
    }
    match set.as_slice() {
        [] => errors.push(Invalid::required("spec", ONE)),
        [_] => {}
        several => {
            let value = format!("{{{}}}", several.join(", "));
            errors.push(Invalid::value(
                "spec",
                value,
                format!("{ONE}, but multiple fields are set"),
            ));
        }
    }
    devices(errors, spec);
}

fn is_advanced(device: &Device) -> bool {
    device.taints.as_ref().is_some_and(|taints| !taints.is_empty())
        || device
            .consumes_counters
            .as_ref()
            .is_some_and(|counters| !counters.is_empty())
        || device.attributes.iter().flatten().any(|(_, own)| {
            own.bools.is_some() || own.ints.is_some() || own.strings.is_some() || own.versions.is_some()
        })
}

/// Validates the number and the names of devices.
fn devices(errors: &mut Vec<Invalid>, spec: &ResourceSliceSpec) {
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(Invalid::value("spec", "", detail));
    }
    let devices = spec.devices.as_deref().unwrap_or_default();
    let most = if devices.iter().any(is_advanced) {
        ADVANCED_DEVICES
    } else {
        DEVICES
    };
    limit(errors, "spec.devices", devices.len(), most);
    if devices.len() > most {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        let field = format!("spec.devices[{index}]");
        each(
            errors,
            &format!("{field}.name"),
            &device.name,
            names::dns1123_label(&device.name),
        );
        if !seen.insert(&device.name) {
            errors.push(Invalid::duplicate(field, &device.name));
        }
    }
}
