//! `ResourceSlice`: devices that a driver publishes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};
use serde::Serialize;

use super::resource_claim::validation::{limit, pool as pool_name};
use crate::kind::{Field, Kind};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::storage::csi_driver;
use crate::workload::validation::{each, immutable, internal, newly, node_selector, one_of};

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
        Field::new("spec.nodeName", |slice| {
            slice.spec.node_name.clone().unwrap_or_default()
        }),
        Field::new("spec.driver", |slice| slice.spec.driver.clone()),
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
        let placed = |spec| {
            let mut found = Vec::new();
            place(&mut found, spec);
            found
        };
        errors.extend(newly(placed(new), || placed(old)));
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

/// Maximum number of attributes and capacities of a device.
const ATTRIBUTES: usize = 32;
/// Maximum number of taints of a device.
const TAINTS: usize = 16;
/// Longest text or version of an attribute, in bytes.
const LONGEST: usize = 64;
/// Longest name of an attribute without its domain, in bytes.
const LONGEST_NAME: usize = 32;

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
        validate_device(errors, device, &field, spec.per_device_node_selection == Some(true));
        if !seen.insert(&device.name) {
            errors.push(Invalid::duplicate(field, &device.name));
        }
    }
}

/// Validates a device (`validateDevice` of `pkg/apis/resource/validation/validation.go`).
fn validate_device(errors: &mut Vec<Invalid>, own: &Device, path: &str, selects_nodes: bool) {
    let name = &own.name;
    each(errors, &format!("{path}.name"), name, names::dns1123_label(name));
    let (attributes, capacity) = (own.attributes.as_ref(), own.capacity.as_ref());
    let count = attributes.map_or(0, BTreeMap::len) + capacity.map_or(0, BTreeMap::len);
    if count > ATTRIBUTES {
        let detail = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES}");
        errors.push(Invalid::value(path, count, detail));
    }
    let field = format!("{path}.attributes");
    for (name, value) in attributes.into_iter().flatten() {
        qualified(errors, name, &field);
        attribute(errors, value, &format!("{field}[{name}]"));
    }
    for name in capacity.into_iter().flat_map(BTreeMap::keys) {
        qualified(errors, name, &format!("{path}.capacity"));
    }
    let (field, taints) = (format!("{path}.taints"), own.taints.as_deref().unwrap_or_default());
    limit(errors, &field, taints.len(), TAINTS);
    let known = if taints.len() <= TAINTS { taints } else { &[] };
    for (index, taint) in known.iter().enumerate() {
        let field = format!("{field}[{index}]");
        each(
            errors,
            &format!("{field}.key"),
            &taint.key,
            names::qualified_name(&taint.key),
        );
        let value = taint.value.as_deref().unwrap_or_default();
        each(errors, &format!("{field}.value"), value, names::label_value(value));
        let effects = ["NoExecute", "NoSchedule", "None"];
        one_of(errors, &format!("{field}.effect"), Some(&taint.effect), &effects);
    }
    nodes(errors, own, path, selects_nodes);
}

/// Validates the nodes of a device, which it names if its slice says so.
fn nodes(errors: &mut Vec<Invalid>, own: &Device, path: &str, selects_nodes: bool) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
        `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    const NONE: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set \
        to true in the ResourceSlice spec";
    if !selects_nodes {
        if own.node_name.is_some() || own.node_selector.is_some() || own.all_nodes.is_some() {
            errors.push(Invalid::rendered(path, "null".to_owned(), NONE));
        }
        return;
    }
    let mut set = Vec::new();
    match own.node_name.as_deref() {
        None => {}
        Some("") => errors.push(Invalid::value(format!("{path}.nodeName"), "", "must not be empty")),
        Some(name) => {
            set.push("`nodeName`");
            each(
                errors,
                &format!("{path}.nodeName"),
                name,
                names::dns1123_subdomain(name),
            );
        }
    }
    if let Some(selector) = &own.node_selector {
        set.push("`nodeSelector`");
        node_selector(errors, selector, &format!("{path}.nodeSelector"));
    }
    match own.all_nodes {
        None => {}
        Some(true) => set.push("`allNodes`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(Invalid::value(format!("{path}.allNodes"), false, detail));
        }
    }
    match set.as_slice() {
        [] => errors.push(Invalid::required(path, ONE)),
        [_] => {}
        several => errors.push(Invalid::value(path, format!("{{{}}}", several.join(", ")), ONE)),
    }
}

/// Validates the name of an attribute or a capacity: a C identifier, with or without a domain.
fn qualified(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    let (domain, id) = match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => (None, *id),
        [domain, id] => (Some(*domain), *id),
        _ => return,
    };
    match domain {
        None => {}
        Some("") => errors.push(Invalid::value(field, "", "the domain must not be empty")),
        Some(domain) => csi_driver(errors, field, domain),
    }
    if domain.is_some() && id.is_empty() {
        errors.push(Invalid::value(field, "", "the name must not be empty"));
        return;
    }
    if id.len() > LONGEST_NAME {
        errors.push(Invalid::too_long(field, LONGEST_NAME));
    }
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if id.is_empty() || id.starts_with(|first: char| first.is_ascii_digit()) || !id.bytes().all(is_inner) {
        let detail = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
            alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
            '[A-Za-z_][A-Za-z0-9_]*')";
        errors.push(Invalid::value(field, id, detail));
    }
}

/// Validates an attribute, which has one value.
fn attribute(errors: &mut Vec<Invalid>, own: &DeviceAttribute, path: &str) {
    for (name, text) in [("string", &own.string), ("version", &own.version)] {
        let Some(text) = text else { continue };
        let field = format!("{path}.{name}");
        if name == "version" && !is_semantic(text) {
            let detail = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(Invalid::value(field.as_str(), text, detail));
        }
        if text.len() > LONGEST {
            errors.push(Invalid::too_long(field, LONGEST));
        }
    }
    // In upstream's order, for the message.
    let values = [
        ("IntValue", shown(&own.int)),
        ("BoolValue", shown(&own.bool)),
        ("StringValue", shown(&own.string)),
        ("VersionValue", shown(&own.version)),
        ("IntValues", shown(&own.ints)),
        ("BoolValues", shown(&own.bools)),
        ("StringValues", shown(&own.strings)),
        ("VersionValues", shown(&own.versions)),
    ];
    let detail = "exactly one value must be specified";
    match values.iter().filter(|(_, value)| value != "null").count() {
        0 => errors.push(Invalid::value(path, "", detail)),
        1 => {}
        _ => {
            let members: Vec<String> = values
                .iter()
                .map(|(name, value)| format!("\"{name}\":{value}"))
                .collect();
            errors.push(Invalid::rendered(path, format!("{{{}}}", members.join(",")), detail));
        }
    }
}

fn shown(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// True for a semantic version.
fn is_semantic(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = |text: &str| is_digits(text) && (text == "0" || !text.starts_with('0'));
    let is_word =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let (text, build) = text
        .split_once('+')
        .map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, release) = text
        .split_once('-')
        .map_or((text, None), |(core, release)| (core, Some(release)));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && release.is_none_or(|own| {
            own.split('.')
                .all(|part| is_word(part) && (!is_digits(part) || is_number(part)))
        })
        && build.is_none_or(|own| own.split('.').all(is_word))
}
